"""Costs from sums equal those of whole placements."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.costs import DeviceCosts
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.summed_costs import Change, SummedCosts
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.roofline import sharding_costs
from dreamshard.testbeds.accelerators.specs import SPECS
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt_placer

A100 = RooflinePlacer(SPECS["a100"])
EVERY_WAY = (
    TableSharding("row_wise"),
    TableSharding("column_wise", columns=((0, 4), (4, 8)), where=(1, 3)),
    TableSharding("data_parallel"),
    TableSharding("grid_shard", columns=((0, 4), (4, 8)), where=(1, 0)),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("table_wise", where=(2,), cached_share=0.5),
    TableSharding("table_wise", where=(2,)),
)


def task():
    any_way = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    rows = [100_000, 70_000, 400, 50_001, 60_002, 90_000, 1000]
    tables = tables_of(rows, 8, [2.0, 5.0, 1.0, 3.0, 2.0, 4.0, 6.0])
    return PlacementTask(tables, 4, 2**30, devices_per_host=2, constraints=any_way)


def exact(of: PlacementTask, placement: Placement) -> DeviceCosts:
    return sharding_costs(of, Shards.of(of, placement), 65_536, SPECS["a100"])


def same(costs: DeviceCosts, expected: DeviceCosts, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(costs.phases_ms(), expected.phases_ms().double(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def placement():
    return Placement(EVERY_WAY, 4, 2)


@pytest.fixture
def summed(placement):
    return SummedCosts.of(A100, task(), [placement])


def test_a_placement_in_every_way_to_shard_costs_what_the_testbed_says(summed, placement):
    same(summed.costs_of(summed.sums(placement)), exact(task(), placement))


@pytest.mark.parametrize("table", range(len(EVERY_WAY)))
@pytest.mark.parametrize("way", range(len(EVERY_WAY)))
def test_a_table_sharded_otherwise_costs_what_the_whole_placement_would(summed, placement, table, way):
    changed = placement.with_table(table, EVERY_WAY[way])
    sums = summed.sums(placement)
    change = Change(table, placement.tables[table], EVERY_WAY[way])
    costs, used = summed.costs_after(sums, [[], [change]])
    same(DeviceCosts.from_phases(costs.phases_ms()[0]), exact(task(), placement))
    same(DeviceCosts.from_phases(costs.phases_ms()[1]), exact(task(), changed))
    assert used[1].tolist() == Shards.of(task(), changed).memory_bytes().tolist()
    after = summed.after(sums, [change])
    same(summed.costs_of(after), exact(task(), changed))
    assert after.used_bytes.tolist() == used[1].tolist()


def test_without_a_table_costs_are_those_of_the_other_tables(summed, placement):
    rest = [0, 1, 2, 3, 5, 6]
    others = replace(task(), tables=task().tables.select(rest))
    without = Placement(tuple(EVERY_WAY[t] for t in rest), 4, 2)
    costs, _ = summed.costs_after(summed.sums(placement), [[Change(4, EVERY_WAY[4], None)]])
    same(DeviceCosts.from_phases(costs.phases_ms()[0]), exact(others, without))


def test_a_trained_network_sums_whole_tables_and_columns_as_it_predicts_them():
    placer, small = learnt_placer(), PlacementTask(pool_of(6), 2, 2**30)
    whole = Placement.whole([0, 1, 0, 1, 1, 1], 2)
    summed = SummedCosts.of(placer, small, [whole])
    sums = summed.sums(whole)
    same(summed.costs_of(sums), placer.predict(small, whole), 1e-5)
    moved = whole.with_table(2, replace(whole.tables[2], where=(1,)))
    costs, _ = summed.costs_after(sums, [[Change(2, whole.tables[2], moved.tables[2])]])
    same(DeviceCosts.from_phases(costs.phases_ms()[0]), placer.predict(small, moved), 1e-5)


def test_a_trained_network_sums_every_way_to_shard_in_device_memory_as_it_predicts_it():
    placer = learnt_placer()
    in_device = tuple(replace(each, cached_share=None) for each in EVERY_WAY)
    placement = Placement(in_device, 4, 2)
    summed = SummedCosts.of(placer, task(), [placement])
    sums = summed.sums(placement)
    same(summed.costs_of(sums), placer.predict(task(), placement), 1e-4)
    changed = placement.with_table(1, in_device[0])
    costs, _ = summed.costs_after(sums, [[Change(1, in_device[1], in_device[0])]])
    same(DeviceCosts.from_phases(costs.phases_ms()[0]), placer.predict(task(), changed), 1e-4)
