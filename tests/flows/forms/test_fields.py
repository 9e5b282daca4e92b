import importlib

import pytest
from prefect.utilities.callables import parameter_schema

from dreamshard.recipes import smoke
from flows.forms.fields import configure
from flows.retrain import retrain


@pytest.mark.parametrize("stage", ["profile", "train", "train_cost", "train_policy", "evaluate", "promote"])
def test_every_stage_takes_the_sizes_that_the_chain_takes(stage):
    flow = getattr(importlib.import_module(f"flows.{stage}"), stage)
    fields, chain = (parameter_schema(each).model_dump()["properties"] for each in (flow, retrain))
    for name in ("num_devices", "memory_gb", "tables_per_task"):
        assert {**fields[name], "position": 0} == {**chain[name], "position": 0}


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no recipe 'big'.*smoke"):
        configure("big")


def test_fields_that_are_filled_in_override_the_recipe_and_empty_ones_do_not():
    assert configure("smoke") == smoke()
    chosen = configure("smoke", testbed="simulated", num_devices=4, memory_gb=1.5, iterations=3)
    assert chosen.testbed == "simulated"
    assert chosen.tasks.num_devices == 4
    assert chosen.tasks.memory_bytes == 3 * 2**29
    assert chosen.training.iterations == 3
    assert chosen.tasks.tables_per_task == smoke().tasks.tables_per_task
