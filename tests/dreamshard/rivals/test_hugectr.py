from dataclasses import replace

import pytest

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import TableSharding
from dreamshard.placer import NoPlacementError
from dreamshard.rivals import rival
from dreamshard.rivals.hugectr import HugeCtrPlanner
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of, task_of

PLENTY = 2**40
# A vector costs as much as one lookup, between devices and between hosts
SPEC = replace(
    PRESETS["a100"], memory_bytes_per_s=4e9, link_bytes_per_s=1e9, network_bytes_per_s=1e9, devices_per_node=2
)


def place(pooling, num_devices, constraints, rows=(10_000_000,), **fields):
    tables = tables_of(list(rows) * (len(pooling) // len(rows)), 8, [float(each) for each in pooling])
    task = PlacementTask(tables, num_devices, fields.pop("memory_bytes", PLENTY), constraints=constraints, **fields)
    placement = HugeCtrPlanner(SPEC).place(task)
    assert not violation(task, placement)
    return placement.tables


def test_whole_tables_go_to_the_cheapest_device():
    whole = place([9, 4, 3, 2], 2, Constraints(sharding_types=("table_wise",)))
    assert [each.where[0] for each in whole] == [0, 1, 1, 1]  # 10 | 5, 10 | 9, then 9 is less than 10


def test_the_hottest_table_is_halved_as_long_as_that_pays():
    hot, *others = place([10, 3, 3], 2, Constraints())  # 11 | 8 whole, 10 | 10 halved, 12.5 and 11 with more halves
    assert hot == TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1))
    assert sorted(each.where[0] for each in others) == [0, 1]


def test_hot_tables_are_on_all_devices_and_small_ones_copied():
    hot, small = place([20, 1], 2, ANY_SHARDING, rows=(10_000_000, 100), devices_per_host=2)
    assert hot == TableSharding("row_wise")
    assert small == TableSharding("data_parallel")


def test_on_several_hosts_a_table_fills_a_host():
    first, second = place([9, 8], 4, ANY_SHARDING)  # 10 | 9; halves cost 10.5 and 10.5
    assert {first.sharding_type, second.sharding_type} == {"table_row_wise"}
    assert {*first.where, *second.where} == {0, 1}


def test_a_table_without_room_is_split_or_all_are_packed():
    wide = place([5], 2, Constraints(), memory_bytes=200_000_000)  # of 320 MB
    assert len(wide[0].columns) == 2
    packs = task_of([3, 3, 2, 2, 2], 2, 6)  # 3 + 3 | 2 + 2 + 2 alone, and dims that cannot be split
    assert not violation(packs, HugeCtrPlanner(SPEC).place(packs))
    with pytest.raises(NoPlacementError):
        rival("hugectr", None).place(task_of([3, 3, 3], 2, 5))
