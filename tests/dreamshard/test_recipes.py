"""Named configurations."""

import pytest

from dreamshard.recipes import RECIPES, recipe, with_overrides


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_complete_and_says_its_name(name):
    assert recipe(name).name == name


def test_an_unknown_recipe_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="nonsense") as error:
        recipe("nonsense")
    assert all(name in str(error.value) for name in RECIPES)


def test_overrides_change_what_they_name_and_nothing_else():
    base = recipe("default")
    changed = with_overrides(base, testbed="simulated", source="mlperf")
    assert (changed.testbed, changed.workload.source) == ("simulated", "mlperf")
    assert (changed.tasks, changed.training) == (base.tasks, base.training)
    assert with_overrides(base) == base
