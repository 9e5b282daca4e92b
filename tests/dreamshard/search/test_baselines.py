"""Rules of thumb."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import ROW_BYTES, device_memory_bytes, tables_of, task_of

# size 400, 160, 200, 240; dim x pooling 40, 20, 4, 24; that x log10(rows) 80, 20, 6.8, 35.5
FOUR = tables_of([100, 10, 50, 30], dim=[4, 16, 4, 8], pooling=[10.0, 1.25, 1.0, 3.0])


@pytest.mark.parametrize(
    ("rule", "device"),
    [
        ("size_greedy", [0, 0, 1, 1]),  # 400 | 240 + 200, then 160 to 400
        ("dim_greedy", [1, 0, 1, 1]),  # 16 | 8 + 4 + 4
        ("lookup_greedy", [0, 1, 0, 1]),  # 40 | 24 + 20, then 4 to 40
        ("size_lookup_greedy", [0, 1, 1, 1]),  # 80 | 35.5 + 20 + 6.8
    ],
)
def test_a_rule_gives_the_largest_to_the_least_loaded(rule, device):
    assert baselines()[rule].place(PlacementTask(FOUR, 2, 2**20)).device.tolist() == device


def test_a_rule_passes_over_a_device_without_room():
    task = PlacementTask(FOUR, 2, 2400)  # 1600, 640, 800, 960 bytes; by dim: 640 | 960, then 1600 beside 640, 800
    assert baselines()["dim_greedy"].place(task).device.tolist() == [0, 0, 1, 1]


def test_there_are_five_by_name():
    assert set(baselines()) == {"random", *RULES_OF_THUMB}
    assert all(isinstance(placer, Placer) and placer.name == name for name, placer in baselines().items())


def test_random_is_the_same_for_the_same_tables_and_differs_by_them_and_the_seed():
    tasks = [task_of([rows] * 30, 4, 100, name=name) for rows, name in ((1, "one"), (1, "two"), (2, "one"))]
    first, renamed, other = (RandomPlacer(0).place(task).device.tolist() for task in tasks)
    assert first == renamed != other
    drawn = {tuple(RandomPlacer(seed).place(tasks[0]).device.tolist()) for seed in range(20)}
    assert len(drawn) == 20, "each seed draws another placement"


def test_random_uses_every_device_about_equally():
    counts = torch.bincount(RandomPlacer(0).place(task_of([1] * 400, 4, 400)).device, minlength=4)
    assert counts.min() > 60  # 100 expected, standard deviation 8.7


@settings(max_examples=40)
@given(rows=st.lists(st.integers(1, 50), min_size=1, max_size=25), num_devices=st.integers(1, 5))
def test_every_rule_is_legal_where_a_device_always_has_room(rows, num_devices):
    room = -(-sum(rows) // num_devices) + max(rows)  # an even share and the largest table: room at every step
    task = task_of(rows, num_devices, room)
    assert all(not violation(task, placer.place(task)) for placer in baselines().values())


@settings(max_examples=40)
@given(rows=st.lists(st.integers(1, 20), min_size=2, max_size=12), num_devices=st.integers(1, 4))
def test_tight_memory_ends_in_a_legal_placement_or_in_an_error(rows, num_devices):
    task = task_of(rows, num_devices, max(max(rows), -(-sum(rows) // num_devices)))
    for placer in baselines().values():
        try:
            assert not violation(task, placer.place(task))
        except NoPlacementError:
            continue


def test_devices_that_must_be_filled_to_the_last_byte_are_packed():
    task = task_of([3, 3, 2, 2, 2], num_devices=2, room_rows=6)  # largest first alternating leaves no room for the last
    for placer in baselines().values():
        assert device_memory_bytes(task.table_bytes, placer.place(task).device[None], 2).tolist() == [[96, 96]]
    assert 6 * ROW_BYTES == 96


def test_what_cannot_be_packed_is_an_error_that_says_what_to_do():
    task = task_of([4, 4, 4], num_devices=2, room_rows=6)
    for placer in baselines().values():
        with pytest.raises(NoPlacementError, match=r"of whole tables .* and none exists.*give the devices more memory"):
            placer.place(task)
