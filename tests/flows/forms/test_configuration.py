import pytest

from dreamshard.recipes import smoke
from flows.forms.configuration import configure
from flows.forms.options import RecipeOptions, RetrainOptions


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no recipe 'big'.*smoke"):
        configure(RecipeOptions(recipe="big"))


def test_options_that_are_filled_in_override_the_recipe_and_empty_ones_do_not():
    assert configure(RecipeOptions(recipe="smoke")) == configure(RetrainOptions(recipe="smoke")) == smoke()
    options = RetrainOptions(recipe="smoke", testbed="simulated", num_devices=4, memory_gb=1.5, iterations=3)
    chosen = configure(options)
    assert chosen.testbed == "simulated"
    assert chosen.tasks.num_devices == 4
    assert chosen.tasks.memory_bytes == 3 * 2**29
    assert chosen.training.iterations == chosen.training.warm_iterations == 3
    assert chosen.tasks.tables_per_task == smoke().tasks.tables_per_task
