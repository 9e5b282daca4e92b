"""Constraints that name devices: whatever their numbers, the same placement by other names."""

from dataclasses import replace

import pytest

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import hardware
from dreamshard.search import RooflinePlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of
from tests.helpers.trained import learnt_placer

TABLES = tables_of(
    [9_000, 70_000, 300, 4_000, 20_000, 1_000], [64, 16, 32, 128, 16, 64], [3.0, 20.0, 1.0, 5.0, 9.0, 2.0]
)
ROOM = 60 << 20
NUMBER = [2, 3, 0, 1]  # in the other task
LIMITS = Constraints(pinned={"t0": (3,), "t1": (0, 2), "t2": (0, 2, 3)}, memory_bytes_of={1: 0, 2: ROOM // 2})
GIVEN, RENUMBERED = (PlacementTask(TABLES, 4, ROOM, constraints=own) for own in (LIMITS, LIMITS.renumbered(NUMBER)))


@pytest.mark.parametrize("placer", [learnt_placer(), RooflinePlacer(hardware("a100"))], ids=["dreamshard", "prior"])
def test_numbers_of_devices_decide_nothing_but_names(placer):
    placed, renumbered = placer.place(GIVEN), placer.place(RENUMBERED)
    assert violation(GIVEN, placed) == violation(RENUMBERED, renumbered) == ""
    other = tuple(replace(each, where=tuple(NUMBER[device] for device in each.where)) for each in placed.tables)
    assert other == renumbered.tables
