"""What a stage on its own starts from: the configuration, and what earlier stages left in the home."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dreamshard.recipes import Recipe
from flows.decisions.warm_start import Start
from flows.forms.fields import configure
from flows.runtime import locks, testbed_pool
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks import training
from storage.lake import home_lake
from storage.run_records import checkpoints
from storage.store import open_store


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A configuration, the dataset and tasks it is applied to, and how training on them begins."""

    config: Recipe
    dataset: str
    tasks: str
    start: Start


def inputs(
    recipe: str,
    seed: int,
    testbed: str | None,
    dataset: str | None,
    *,
    num_devices: int | None = None,
    memory_gb: float | None = None,
    tables_per_task: int | None = None,
) -> Inputs:
    """The recipe on a dataset of the home, as `configured`; its tasks are drawn if they have not been."""
    sizes: dict[str, Any] = {"num_devices": num_devices, "memory_gb": memory_gb, "tables_per_task": tables_per_task}
    config, chosen = configured(recipe, testbed, dataset, **sizes)
    found = training.find_start(config, chosen, testbed_pool.reference(config, chosen, seed))
    start = replace(found, source=home_lake().dataset_source(chosen))  # which need not be the recipe's
    tasks = training.draw_tasks(chosen, config.tasks, seed, start.split_of)
    return Inputs(config=config, dataset=chosen, tasks=tasks, start=start)


def configured(
    recipe: str,
    testbed: str | None,
    dataset: str | None,
    *,
    num_devices: int | None = None,
    memory_gb: float | None = None,
    tables_per_task: int | None = None,
) -> tuple[Recipe, str]:
    """The recipe, and the dataset of the home that it is applied to.

    Args:
        dataset: a version, or None for the one ingested last.
        num_devices: of a task; as the other sizes instead of the recipe's.

    Raises:
        ValueError: nothing has been ingested, or not this version.
    """
    config = configure(
        recipe, testbed=testbed, num_devices=num_devices, memory_gb=memory_gb, tables_per_task=tables_per_task
    )
    testbed_pool.check(config)
    known = home_lake().dataset_versions()
    if not known:
        raise ValueError(
            "nothing has been ingested into this home, so there are no tables to work on; run `dreamshard ingest`"
        )
    if dataset is not None and dataset not in known:
        raise ValueError(
            f"there is no dataset {dataset!r} in this home; choose one of {known[-5:]}, or run `dreamshard ingest`"
        )
    return config, dataset or known[-1]


def started_training(given: Inputs, bench: TestbedReference) -> tuple[str, int]:
    """The training of these inputs and the number of its last complete iteration.

    Raises:
        ValueError: it has not been started.
    """
    key = training.training_key(given.dataset, given.tasks, given.start, bench)
    last = checkpoints.last_iteration(open_store(), key)
    if last is None:
        raise ValueError(
            f"there is no training of recipe {given.config.name!r} with seed {bench.seed} on {bench.identity} in this "
            "home, so there is nothing to go on from; run `dreamshard train` with the same options first"
        )
    return key, last


@contextmanager
def going_on(given: Inputs, bench: TestbedReference) -> Iterator[tuple[str, int]]:
    """`started_training`; within the block nobody else goes on with it."""
    with locks.of_training(training.training_key(given.dataset, given.tasks, given.start, bench)):
        yield started_training(given, bench)
