"""Heuristics."""

import pytest

from dreamshard.search.baselines import RandomPlacer, baselines
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import ROW_BYTES, device_memory_bytes, tables_of, task_of

# size 400, 160, 200, 240; dim x pooling 40, 20, 4, 24; that x log10(rows) 80, 20, 6.8, 35.5
FOUR = tables_of([100, 10, 50, 30], dim=[4, 16, 4, 8], pooling=[10.0, 1.25, 1.0, 3.0])


@pytest.mark.parametrize(
    ("heuristic", "device"),
    [
        ("size_greedy", [0, 0, 1, 1]),  # 400 | 240 + 200, then 160 to 400
        ("dim_greedy", [1, 0, 1, 1]),  # 16 | 8 + 4 + 4
        ("lookup_greedy", [0, 1, 0, 1]),  # 40 | 24 + 20, then 4 to 40
        ("size_lookup_greedy", [0, 1, 1, 1]),  # 80 | 35.5 + 20 + 6.8
    ],
)
def test_a_heuristic_gives_the_largest_to_the_least_loaded(heuristic, device):
    assert baselines()[heuristic].place(PlacementTask(FOUR, 2, 2**20)).device.tolist() == device


def test_a_rule_passes_over_a_device_without_room():
    task = PlacementTask(FOUR, 2, 2400)  # 1600, 640, 800, 960 bytes; by dim: 640 | 960, then 1600 beside 640, 800
    assert baselines()["dim_greedy"].place(task).device.tolist() == [0, 0, 1, 1]


def test_random_depends_on_the_tables_and_the_seed():
    tasks = [task_of([rows] * 30, 4, 100, name=name) for rows, name in ((1, "one"), (1, "two"), (2, "one"))]
    first, renamed, other = (RandomPlacer(0).place(task).device.tolist() for task in tasks)
    assert first == renamed != other
    drawn = {tuple(RandomPlacer(seed).place(tasks[0]).device.tolist()) for seed in range(20)}
    assert len(drawn) == 20, "each seed draws another placement"


def test_devices_that_must_be_filled_to_the_last_byte_are_packed():
    task = task_of([3, 3, 2, 2, 2], num_devices=2, room_rows=6)  # largest first alternating leaves no room for the last
    for placer in baselines().values():
        assert device_memory_bytes(task.table_bytes, placer.place(task).device[None], 2).tolist() == [[96, 96]]
    assert 6 * ROW_BYTES == 96
