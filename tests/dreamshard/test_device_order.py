"""Constraints that name devices: whatever their numbers, the same placement by other names."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import hardware
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
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


class Recorder(OrderedPlacer):
    """Puts table 0 on device 0, table 1 on device 1, and so on, and keeps its task."""

    def found(self, task, budget_ms):
        self.asked = task
        return Placement.whole(torch.arange(len(task.tables)) % task.num_devices, task.num_devices)


def test_a_placer_sees_one_order_and_answers_in_the_numbers_of_the_task():
    one, other = Recorder(), Recorder()
    placed, renumbered = one.place(GIVEN), other.place(RENUMBERED)
    assert one.asked.constraints == other.asked.constraints
    assert [NUMBER[device] for device in placed.device.tolist()] == renumbered.device.tolist()


@pytest.mark.parametrize("placer", [learnt_placer(), RooflinePlacer(hardware("a100"))], ids=["dreamshard", "prior"])
def test_a_sharded_placement_of_whole_tables_and_columns_too(placer):
    placed, renumbered = placer.place(GIVEN), placer.place(RENUMBERED)
    assert violation(GIVEN, placed) == violation(RENUMBERED, renumbered) == ""
    other = tuple(replace(each, where=tuple(NUMBER[device] for device in each.where)) for each in placed.tables)
    assert other == renumbered.tables
