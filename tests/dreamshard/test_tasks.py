"""Placement tasks."""

import pytest
import torch

from dreamshard.placement import Placement
from dreamshard.shards import violation
from tests.helpers.tables import task_of


def test_a_table_larger_than_a_device_is_named():
    with pytest.raises(ValueError, match=r"'t1'.*smallest shard"):
        task_of([5, 11], num_devices=4, room_rows=10)


def test_tables_larger_than_all_devices_together_are_refused():
    with pytest.raises(ValueError, match="2 devices together"):
        task_of([7, 7, 7], num_devices=2, room_rows=10)


def test_a_task_that_exactly_fills_its_devices_is_a_task():
    task = task_of([10, 10], num_devices=2, room_rows=10)
    assert not violation(task, Placement.whole(torch.tensor([0, 1]), 2))
    assert violation(task, Placement.whole(torch.tensor([0, 0]), 2))


def test_a_placement_of_another_number_of_tables_or_devices_is_not_legal():
    task = task_of([1, 1], num_devices=2, room_rows=10)
    assert violation(task, Placement.whole(torch.tensor([0, 1, 1]), 2))
    assert violation(task, Placement.whole(torch.tensor([0, 1]), 3))
