"""Which device holds which table."""

import pytest
import torch

from dreamshard.placement import ColumnShard, Placement, device_memory_bytes, is_legal

BYTES = torch.tensor([5, 3, 2])


def test_memory_is_summed_per_device_and_what_is_not_placed_takes_none():
    device = torch.tensor([[0, 1, 0], [1, 1, -1]])
    assert device_memory_bytes(BYTES, device, 2).tolist() == [[7, 3], [0, 8]]


def test_a_placement_is_legal_if_complete_and_within_every_device():
    device = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 1, -1]])
    assert is_legal(BYTES, device, 2, 7).tolist() == [True, False, False]


def test_a_device_filled_to_the_last_byte_is_legal():
    assert is_legal(BYTES, torch.tensor([[0, 0, 0]]), 1, 10).tolist() == [True]
    assert is_legal(BYTES, torch.tensor([[0, 0, 0]]), 1, 9).tolist() == [False]


def test_a_device_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"devices \[2\].*0\.\.1"):
        Placement(torch.tensor([0, 2]), 2)


def test_tables_of_a_device_are_listed():
    assert Placement(torch.tensor([1, 0, 1]), 2).tables_of(1) == [0, 2]


def test_shards_need_a_device_each():
    with pytest.raises(ValueError, match="2 column shards but devices for 1"):
        Placement(torch.tensor([0]), 2, (ColumnShard(0, 0, 4), ColumnShard(0, 4, 8)))
