import pytest

from dreamshard.recipes import RECIPES
from dreamshard.training.config import ALGORITHMS
from flows.forms.configuration import configure
from flows.forms.options import RecipeOptions, RetrainOptions


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no recipe 'big'.*smoke"):
        configure(RecipeOptions(recipe="big"))


def test_options_that_are_filled_in_override_the_recipe_and_empty_ones_do_not():
    assert configure(RecipeOptions(recipe="smoke")) == configure(RetrainOptions(recipe="smoke")) == RECIPES["smoke"]
    options = RetrainOptions(recipe="smoke", testbed="simulated", devices=4, memory_gb=1.5, iterations=3)
    chosen = configure(options)
    assert chosen.testbed == "simulated"
    assert chosen.tasks.num_devices == 4
    assert chosen.tasks.memory_bytes == 3 * 2**29
    assert chosen.training.iterations == chosen.training.warm_iterations == 3
    assert chosen.tasks.tables_per_task == RECIPES["smoke"].tasks.tables_per_task


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_replaces_the_recipes_and_keeps_its_numbers(algorithm: str):
    chosen = configure(RetrainOptions(recipe="smoke", algorithm=algorithm, iterations=3)).training
    assert (chosen.algorithm, chosen.iterations) == (algorithm, 3)
    assert chosen.placements_per_iteration == RECIPES["smoke"].training.placements_per_iteration
    assert configure(RetrainOptions(recipe="paper_50x4")).training.algorithm == "paper"


def test_what_is_kept_free_of_each_device_comes_from_the_options():
    assert configure(RetrainOptions(recipe="smoke", reserve_gb=0.5)).tasks.reserve_bytes == 2**29
    assert configure(RetrainOptions(recipe="smoke")).tasks.reserve_bytes == 0


def test_hosts_and_further_exchanges_come_from_the_options():
    chosen = configure(RetrainOptions(recipe="smoke", devices_per_host=8, exchange_devices=[128, 64, 64]))
    assert chosen.tasks.devices_per_host == 8
    assert chosen.measure.exchange_devices == (64, 128)
    assert configure(RetrainOptions(recipe="smoke")).measure == RECIPES["smoke"].measure


def test_sources_become_absolute_and_batches_need_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workload = configure(RetrainOptions(recipe="smoke", source="m.py:make", batches="d.py:batches")).workload
    assert (workload.source, workload.batches) == (f"{tmp_path}/m.py:make", f"{tmp_path}/d.py:batches")
    assert configure(RetrainOptions(source="meta-dlrm-2021")).workload.source == "meta-dlrm-2021"
    with pytest.raises(ValueError, match="needs a model"):
        configure(RetrainOptions(source="tables.csv", batches="d.py:batches"))
