"""Settles what a recipe leaves open, from the tables and the testbed, and says what was chosen."""

from dreamshard.recipes import Recipe
from dreamshard.sizing import Sizes, sized
from dreamshard.testbeds.capacity import Capacity
from flows.runtime.progress import announce
from storage.store import Store


def settle(store: Store, config: Recipe, dataset: str, capacity: Capacity) -> tuple[Recipe, Sizes]:
    """The recipe with its mode and sizes, and what was chosen, which the run shows first.

    Args:
        dataset: version of the tables.
    """
    settled, sizes = sized(config, store.lake.read_dataset(dataset), capacity)
    announce(sizes.sentence)
    return settled, sizes
