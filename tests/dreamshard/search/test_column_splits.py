"""Tables split by columns."""

from importlib import resources
from pathlib import Path

import pytest
import torch

from dreamshard.placement import Placement, TableSharding, even_columns
from dreamshard.placer import NoPlacementError
from dreamshard.search.baselines import baselines
from dreamshard.search.packing import tight_splits
from dreamshard.shards import violation
from dreamshard.task_sets.fixed_model import split_by_columns
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import open_testbed
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.workloads import read_tables
from tests.helpers.tables import tables_of
from tests.helpers.trained import learnt_placer

GENEROUS = 2**30


def no_lookups(name):
    raise AssertionError(f"{name} is not looked up in a simulation")


def simulated(num_devices, batch_size=65_536):
    return open_testbed("simulated", TestbedSetup(num_devices=num_devices, batch_size=batch_size, lookups=no_lookups))


def test_shards_cover_every_column_once_in_multiples_of_four():
    task = PlacementTask(tables_of([10, 10], dim=[20, 8]), 2, GENEROUS)
    finer = split_by_columns(task, torch.tensor([3, 1]))
    assert finer.tables.names == ("t0[0:4]", "t0[4:12]", "t0[12:20]", "t1")
    assert finer.tables.dim.tolist() == [4, 8, 8, 8]
    assert finer.tables.lookups[:3].tolist() == [int(task.tables.lookups[0])] * 3
    assert finer.table_bytes.sum() == task.table_bytes.sum()


def test_splitting_costs_something_on_a_device_that_one_table_fills():
    task = PlacementTask(tables_of([100_000], dim=64, pooling=20.0), 1, GENEROUS)
    testbed = simulated(1)
    whole = testbed.measure(task, Placement.whole(torch.tensor([0]), 1)).overall_ms
    split = testbed.measure(task, Placement((TableSharding("column_wise", even_columns(64, 2), (0, 0)),), 1, 1))
    assert split.overall_ms > whole
    assert split.of_whole_tables().task.tables.names == ("t0[0:32]", "t0[32:64]")


def test_a_table_larger_than_a_device_needs_as_many_shards_as_fit():
    tables = tables_of([100], dim=16)  # 6,400 bytes in fp32, 1,600 per four columns
    task = PlacementTask(tables, 4, 3_300)
    assert [parts.tolist() for parts in tight_splits(task)] == [[2], *[[4]] * 6]


def test_a_table_larger_than_every_device_is_placed_by_columns_and_refused_by_rules_of_thumb():
    task = PlacementTask(tables_of([1000, 100, 100], dim=[32, 8, 8]), 4, 70_000)
    placement = learnt_placer().place(task)
    assert not violation(task, placement)
    assert len(placement.tables[0].columns) >= 2
    with pytest.raises(NoPlacementError, match="splits tables by columns"):
        baselines()["size_greedy"].place(task)


@pytest.mark.parametrize(("name", "num_devices"), [("medium", 8), ("large", 32)])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.slow
def test_nvidia_s_models_place_on_devices_of_80_gb(name, num_devices, optimizer):
    path = Path(str(resources.files("dreamshard.workloads") / "data" / f"nvidia-synthetic-{name}.csv"))
    task = PlacementTask(read_tables(path), num_devices, 80 * 2**30, "fp32", optimizer)
    assert not violation(task, learnt_placer().place(task))


def test_one_table_that_outweighs_all_others_is_split_where_that_is_cheaper():
    tables = tables_of([500_000, *[1000] * 6], dim=[128, *[4] * 6], pooling=[60.0, *[1.0] * 6])
    task = PlacementTask(tables, 4, 4 * GENEROUS)
    placement, testbed = learnt_placer().place(task), simulated(4)
    whole = min(testbed.measure(task, placer.place(task)).overall_ms for placer in baselines().values())
    assert not placement.is_whole
    assert testbed.measure(task, placement).overall_ms < whole
