"""Which device holds which table."""

import pytest
import torch

from dreamshard.placement import ColumnShard, Move, Placement, device_memory_bytes, is_legal, moves
from tests.helpers.tables import tables_of

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


def test_moves_name_what_changed_largest_first():
    before, after = Placement(torch.tensor([0, 0, 1]), 2), Placement(torch.tensor([0, 1, 0]), 2)
    tables = tables_of([1, 3, 2])
    sizes = torch.tensor([1, 3, 2])
    assert [
        (move.table, move.source, move.target, move.memory_bytes) for move in moves(tables, sizes, before, after)
    ] == [
        ("t1", 0, 1, 3),
        ("t2", 1, 0, 2),
    ]
    assert moves(tables, sizes, before, before) == []


def test_a_split_table_moves_only_the_columns_that_change_device():
    tables = tables_of([1], dim=8)
    before = Placement(torch.tensor([0]), 2)
    after = Placement(torch.tensor([0, 1]), 2, (ColumnShard(0, 0, 4), ColumnShard(0, 4, 8)))
    assert moves(tables, torch.tensor([80]), before, after) == [Move("t0", 4, 8, 0, 1, 40)]


def test_shards_need_a_device_each():
    with pytest.raises(ValueError, match="2 column shards but devices for 1"):
        Placement(torch.tensor([0]), 2, (ColumnShard(0, 0, 4), ColumnShard(0, 4, 8)))
