from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.cost_model import Normaliser, StructuredCostNetwork
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.tables import TableSharding
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from tests.benchmarks.hugectr import HugeCtrPlanner
from tests.benchmarks.neuroshard import NeuroShardPlacer
from tests.helpers.tables import tables_of, task_of
from tests.helpers.trained import learnt

PLENTY = 2**40
# A vector costs as much as one lookup, between devices and between hosts
SPEC = replace(
    PRESETS["a100"], memory_bytes_per_s=4e9, link_bytes_per_s=1e9, network_bytes_per_s=1e9, devices_per_host=2
)


def place(pooling, num_devices, constraints, rows=(10_000_000,), **fields):
    tables = tables_of(list(rows) * (len(pooling) // len(rows)), 8, [float(factor) for factor in pooling])
    task = PlacementTask(tables, num_devices, fields.pop("memory_bytes", PLENTY), constraints=constraints, **fields)
    placement = HugeCtrPlanner(SPEC).place(task)
    assert not violation(task, placement)
    return placement.tables


def test_whole_tables_go_to_the_cheapest_device():
    whole = place([9, 4, 3, 2], 2, Constraints(sharding_types=("table_wise",)))
    assert [sharding.where[0] for sharding in whole] == [0, 1, 1, 1]  # 10 | 5, 10 | 9, then 9 is less than 10


def test_the_hottest_table_is_halved_as_long_as_that_pays():
    hot, *others = place([10, 3, 3], 2, Constraints())  # 11 | 8 whole, 10 | 10 halved, 12.5 and 11 with more halves
    assert hot == TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1))
    assert sorted(other.where[0] for other in others) == [0, 1]


def test_hot_tables_are_on_all_devices_and_small_ones_copied():
    hot, small = place([20, 1], 2, ANY_SHARDING, rows=(10_000_000, 100), devices_per_host=2)
    assert hot == TableSharding("row_wise")
    assert small == TableSharding("data_parallel")


def test_on_several_hosts_a_table_fills_a_host():
    first, second = place([9, 8], 4, ANY_SHARDING)  # 10 | 9; halves cost 10.5 and 10.5
    assert {first.sharding_type, second.sharding_type} == {"table_row_wise"}
    assert {*first.where, *second.where} == {0, 1}


def test_a_table_without_room_is_split():
    wide = place([5], 2, Constraints(), memory_bytes=200_000_000)  # of 320 MB
    assert len(wide[0].columns) == 2


@pytest.mark.parametrize(
    "placer", [HugeCtrPlanner(SPEC), NeuroShardPlacer(learnt().cost_network, learnt().normaliser)], ids=lambda p: p.name
)
def test_tables_are_packed_if_no_plan_fits(placer):
    packs = task_of([3, 3, 2, 2, 2], 2, 6)  # 3 + 3 | 2 + 2 + 2 alone, and dims that cannot be split
    assert not violation(packs, placer.place(packs))
    with pytest.raises(NoPlacementError):
        placer.place(task_of([3, 3, 3], 2, 5))


def plain(tables, ms_per_widest_hundred_dims=0.0):
    """Each compute phase costs `pooling x dim / 100` ms per table, each all-to-all so much per 100 dims of the widest
    device, times the share that leaves it."""
    normaliser = Normaliser.fit(tables)
    network = StructuredCostNetwork(normaliser)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.price[0::2, -4:] = 0.01  # of lookups times dim
        network.power.fill_(1.0)
        network.exponent[:, 0] = 1.0
        network.exchanges.fitted_ms = torch.tensor([[0.0, 0.0, ms_per_widest_hundred_dims, 0.0, 0.0, 0.0]] * 2)
        network.exchanges.batch_size += 1
    return network, normaliser


def test_a_limit_on_dims_separates_wide_tables_on_slow_links():
    task = PlacementTask(tables_of([100, 100, 100], [4, 64, 64], [32.0, 1.0, 1.0]), 2, PLENTY)
    placed = NeuroShardPlacer(*plain(task.tables, 20.0), columns=False).place(task)
    _, wide, other = placed.device.tolist()
    assert wide != other  # 128 + 64 | 64 at dims 68 | 64, within 1.5 times the mean of 66


def test_a_table_with_all_the_work_is_split_by_columns():
    task = PlacementTask(tables_of([100, 100], [64, 4], [50.0, 0.1]), 4, PLENTY)
    placed = NeuroShardPlacer(*plain(task.tables)).place(task)
    wide = placed.tables[0]
    assert [end - start for start, end in wide.columns] == [16, 16, 16, 16]
    assert sorted(wide.where) == [0, 1, 2, 3]
    assert not violation(task, placed)
    assert NeuroShardPlacer(*plain(task.tables), columns=False).place(task).is_whole
