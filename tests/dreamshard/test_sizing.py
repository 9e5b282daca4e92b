"""Sizes that follow from the tables and the testbed."""

from dataclasses import replace

import pytest

from dreamshard.recipes import recipe as named
from dreamshard.recipes import with_overrides
from dreamshard.sizing import sized, with_batch_size
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.testbeds.base import Capacity
from tests.helpers.tables import pool_of

CPU = Capacity(kind="cpu", memory_bytes=10 * 2**30)
A100 = Capacity(kind="simulated", memory_bytes=80 * 2**30)


@pytest.mark.parametrize(("count", "mode", "per_task"), [(5, "fixed", 5), (39, "fixed", 39), (40, "pool", 20)])
def test_fewer_tables_than_two_tasks_worth_are_one_fixed_model(count, mode, per_task):
    recipe, sizes = sized(with_overrides(named("default"), source="mine.csv"), pool_of(count), CPU)
    assert (recipe.tasks.mode, recipe.tasks.tables_per_task) == (mode, per_task)
    assert f"{count} tables are {'fewer than ' if mode == 'fixed' else ''}two tasks' worth" in sizes.sentence
    assert sizes.parameters["tasks"]["mode"] == mode


def test_a_fixed_model_has_all_tables_even_if_fewer_were_given_for_a_task():
    recipe, sizes = sized(replace(with_overrides(named("default"), source="mine.csv"), derived=()), pool_of(26), CPU)
    assert recipe.tasks.tables_per_task == 26
    assert "26 tables (all of them)" in sizes.sentence


def test_ranks_on_the_cpu_take_the_recipes_batch_even_beside_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    for testbed in ("cluster:cpu", "cluster:ray:cpu"):
        assert with_batch_size(
            with_overrides(named("default"), testbed=testbed, source="criteo-kaggle")
        ) == with_overrides(named("default"), testbed=testbed, source="criteo-kaggle")


def test_memory_is_the_devices_less_a_reserve_unless_it_was_given():
    asked = with_overrides(named("default"), source="mine.csv")
    assert sized(asked, pool_of(5), A100)[0].tasks.memory_bytes == 70 * 2**30
    assert sized(asked, pool_of(5), CPU)[0].tasks.memory_bytes == 5 * 2**30
    recipe, sizes = sized(asked, pool_of(5), Capacity(kind="unknown"))
    assert recipe.tasks.memory_bytes == 2**30
    assert "1 GiB (the recipe's, since the testbed states no memory_bytes)" in sizes.sentence
    given = replace(asked, derived=("tables_per_task",))
    recipe, sizes = sized(given, pool_of(5), A100)
    assert recipe.tasks.memory_bytes == 2**30
    assert "1 GiB (as given)" in sizes.sentence


def test_what_is_to_be_kept_free_is_taken_off_the_memory_once():
    asked = with_overrides(named("default"), source="mine.csv")
    reserved = replace(asked, tasks=replace(asked.tasks, reserve_bytes=6 * 2**30))
    recipe, sizes = sized(reserved, pool_of(5), A100)
    assert recipe.tasks.memory_bytes == 64 * 2**30
    assert "64 GiB" in sizes.sentence
    given = replace(recipe, derived=())
    assert sized(given, pool_of(5), A100)[0].tasks.memory_bytes == 64 * 2**30
    with pytest.raises(ValueError, match="6 GiB are to be kept free of the 5 GiB of each device"):
        sized(reserved, pool_of(5), CPU)


def test_a_recipe_keeps_its_sizes_for_its_own_tables():
    for base in (named("default"), named("dlrm_50x4")):
        recipe, _ = sized(base, pool_of(200), A100)
        assert recipe.tasks.mode == "pool"
        assert recipe.tasks.tables_per_task == base.tasks.tables_per_task
        assert recipe.tasks.memory_bytes == base.tasks.memory_bytes
        assert with_batch_size(base) == base


def test_the_batch_size_is_that_of_gpus_where_one_is_measured_or_modelled():
    def batch(testbed: str, base=None, source: str = "criteo-kaggle") -> int:
        return with_batch_size(
            with_overrides(base or named("default"), testbed=testbed, source=source)
        ).workload.batch_size

    assert batch("simulated:a100") == batch("emulated") == DEFAULT_BATCH
    assert batch("cluster:cuda") == batch("cluster:ray:cuda") == DEFAULT_BATCH
    assert batch("cluster:cpu") == named("default").workload.batch_size
    assert batch("simulated", named("smoke")) == named("smoke").workload.batch_size, "a tiny configuration stays one"
