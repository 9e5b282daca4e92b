"""Placements within a task's constraints."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.search.baselines import baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt_placer

A100 = PRESETS["a100"]

TASK = PlacementTask(pool_of(20), 4, 2**40)
NAMES = TASK.tables.names


def all_placers():
    return [learnt_placer(), RooflinePlacer(A100), *baselines().values()]


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(pinned={NAMES[0]: (2,), NAMES[1]: (1, 3)}),
        Constraints(excluded={NAMES[0]: (0, 1, 2), NAMES[5]: (3,)}),
        Constraints(excluded_devices=(1, 2)),
        Constraints(together=(frozenset(NAMES[:4]), frozenset(NAMES[3:6]), frozenset(NAMES[8:10]))),
        Constraints(apart=(frozenset(NAMES[:4]), frozenset(NAMES[4:7]))),
        Constraints(
            pinned={NAMES[0]: (3,)},
            together=(frozenset(NAMES[:2]),),
            apart=(frozenset({NAMES[1], NAMES[7], NAMES[9]}),),
            excluded_devices=(0,),
        ),
    ],
    ids=["pinned", "excluded", "excluded devices", "together", "apart", "all"],
)
def test_every_placer_respects_constraints(constraints):
    task = replace(TASK, constraints=constraints)
    for placer in all_placers():
        placement = placer.place(task)
        assert violation(task, placement) == "", placer.name
        assert not violation(task, placement)


def test_devices_of_unequal_memory_are_filled_as_far_as_each_has_room():
    tables = tables_of([100, 100, 50, 50, 10], dim=4)  # 16 bytes a row
    constraints = Constraints(memory_bytes_of={0: 3_300, 1: 1_000}, reserve_bytes=100)
    task = PlacementTask(tables, 2, 10**6, constraints=replace(constraints, memory_bytes_of={0: 3_300, 1: 1_900}))
    for placer in all_placers():
        assert violation(task, placer.place(task)) == "", placer.name
    with pytest.raises(ValueError, match="devices together"):
        PlacementTask(tables, 2, 10**6, constraints=constraints)


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(sharding_types_of={NAMES[3]: ("row_wise",)}),
        Constraints(cached_share_of={NAMES[3]: 0.5}),
        Constraints(sharding_types_of={NAMES[3]: ("column_wise", "row_wise")}, narrowest_columns_of={NAMES[3]: 10**6}),
    ],
)
def test_constraints_that_whole_tables_and_columns_cannot_meet_are_met_in_other_ways(constraints):
    task = replace(TASK, constraints=constraints)
    assert violation(task, RooflinePlacer(A100).place(task)) == ""


def test_a_table_to_be_split_by_columns_is_split_and_not_finer_than_allowed():
    tables = tables_of([10**6, 100, 100], dim=64, pooling=[50.0, 1.0, 1.0])
    constraints = Constraints(sharding_types_of={"t1": ("column_wise",)}, narrowest_columns_of={"t0": 32, "t1": 16})
    task = PlacementTask(tables, 8, 2**40, constraints=constraints)
    placement = RooflinePlacer(A100).place(task)
    assert violation(task, placement) == ""
    widths = [[end - start for start, end in each.ranges(64)] for each in placement.tables]
    assert min(widths[0]) >= 32
    assert len(widths[1]) > 1


def test_swaps_keep_tables_apart():
    task = replace(TASK, constraints=Constraints(apart=tuple(frozenset(NAMES[i : i + 4]) for i in range(0, 20, 4))))
    placement = RooflinePlacer(A100).place(task, 0.0)
    assert violation(task, placement) == ""
    assert sorted(torch.bincount(placement.device).tolist()) == [5, 5, 5, 5]
