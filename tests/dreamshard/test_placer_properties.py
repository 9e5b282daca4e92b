"""What holds of every placer on any task: legal, the same whatever the order of tables, and never worse for more memory."""

import pytest

from dreamshard.tasks import PlacementTask
from tests.helpers.placer_properties import PLACERS, broken_properties, drawn_task, thread_differences
from tests.helpers.tables import pool_of

SEEDS = range(3)


@pytest.mark.parametrize("name", [name for name in PLACERS if name != "prior"])
@pytest.mark.slow
def test_every_property_holds_on_random_tasks(name):
    broken = {seed: found for seed in SEEDS if (found := broken_properties(name, drawn_task(seed)))}
    assert broken == {}


@pytest.mark.parametrize(("name", "seed"), [("cost_greedy", 2748), ("lookup_greedy", 2743), ("prior", 2748)])
def test_constraints_that_name_devices_break_no_property(name, seed):
    """Pins that greedy on costs did not know, and an exact search in the order of the tables."""
    task = drawn_task(seed)
    assert not task.constraints.places_freely
    assert broken_properties(name, task) == ""


@pytest.mark.parametrize("seed", [2713, 741959843])
@pytest.mark.slow
def test_more_memory_once_hid_that_splits_are_cheaper(seed):
    """Whole tables are within a few percent at first, and a longer search gains with columns only."""
    assert broken_properties("prior", drawn_task(seed)) == ""


@pytest.mark.parametrize("name", ["dreamshard", "dreamshard_columns", "neuroshard"])
@pytest.mark.parametrize("task", [drawn_task(1), PlacementTask(pool_of(120), 16, 2**33)], ids=["drawn", "large"])
def test_one_thread_or_many_place_alike_to_the_bit(name, task):
    assert thread_differences(name, task) == ""
