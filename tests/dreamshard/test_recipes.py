from dataclasses import replace

import pytest

from dreamshard.recipes import RECIPES, recipe, sized, with_batch_size, with_overrides
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.testbeds.base import Capacity
from tests.helpers.tables import pool_of

GIB = 2**30
CPU = Capacity(kind="cpu", memory_bytes=10 * GIB)
A100 = Capacity(kind="simulated", memory_bytes=80 * GIB)
DEFAULT = recipe("default")
MINE = with_overrides(DEFAULT, source="mine.csv")


@pytest.mark.parametrize(("count", "mode", "per_task"), [(5, "fixed", 5), (39, "fixed", 39), (40, "pool", 20)])
def test_a_list_of_ones_own_is_a_fixed_model_unless_tasks_are_smaller(count, mode, per_task):
    recipe, sentence = sized(MINE, pool_of(count), CPU)
    assert (recipe.tasks.mode, recipe.tasks.tables_per_task) == ("fixed", count)
    assert "your tables are one model" in sentence
    given, sentence = sized(replace(MINE, derived=()), pool_of(count), CPU)
    assert (given.tasks.mode, given.tasks.tables_per_task) == (mode, per_task)
    assert f"{count} tables are {'fewer than ' if mode == 'fixed' else ''}two tasks' worth" in sentence


@pytest.mark.parametrize(
    ("capacity", "derived", "reserve_bytes", "expected", "origin"),
    [
        (A100, MINE.derived, 0, 70 * GIB, "derived"),
        (CPU, MINE.derived, 0, 5 * GIB, "derived"),
        (Capacity(kind="unknown"), MINE.derived, 0, 2 * GIB, "the recipe's, since the testbed states no memory_bytes"),
        (A100, ("tables_per_task",), 0, 2 * GIB, "as given"),
        (A100, MINE.derived, 6 * GIB, 64 * GIB, "derived"),
    ],
)
def test_memory_is_the_devices_less_a_reserve_unless_given(capacity, derived, reserve_bytes, expected, origin):
    asked = replace(MINE, tasks=replace(MINE.tasks, reserve_bytes=reserve_bytes), derived=derived)
    recipe, sentence = sized(asked, pool_of(5), capacity)
    assert recipe.tasks.memory_bytes == expected
    assert f"({origin})" in sentence
    again, _ = sized(replace(recipe, derived=()), pool_of(5), capacity)
    assert again.tasks.memory_bytes == expected, "a reserve is taken off once"
    with pytest.raises(ValueError):
        sized(replace(asked, tasks=replace(asked.tasks, reserve_bytes=80 * GIB)), pool_of(5), capacity)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_keeps_its_sizes_for_its_own_tables(name):
    base = recipe(name)
    kept, _ = sized(base, pool_of(200), A100)
    assert (base.name, kept.tasks.mode) == (name, "pool")
    assert kept.tasks.tables_per_task == base.tasks.tables_per_task
    assert kept.tasks.memory_bytes == base.tasks.memory_bytes
    assert with_batch_size(base) == base


@pytest.mark.parametrize(
    ("testbed", "base", "batch_size"),
    [
        *((name, "default", DEFAULT_BATCH) for name in ("simulated:a100", "emulated", "cluster:ray:cuda")),
        *(("cluster:ray:cpu", "default", 1024), ("simulated", "smoke", 512)),
    ],
)
def test_the_batch_size_is_for_gpus_if_one_is_measured(monkeypatch, testbed, base, batch_size):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    asked = with_overrides(recipe(base), testbed=testbed, source="criteo-kaggle")
    assert with_batch_size(asked).workload.batch_size == batch_size
