"""Which device holds which table."""

import pytest
import torch

from dreamshard.placement import Placement, TableSharding
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import ROW_BYTES, tables_of


def test_a_placement_is_legal_if_it_is_made_for_the_task_and_within_every_device():
    task = PlacementTask(tables_of([5, 3, 2], dim=4), 2, 7 * ROW_BYTES)
    assert violation(task, Placement.whole([0, 1, 0], 2)) == ""  # filled to the last byte
    assert "device 0 would hold" in violation(task, Placement.whole([0, 0, 1], 2))
    assert "of 2 tables" in violation(task, Placement.whole([0, 1], 2))
    assert "on 3 devices" in violation(task, Placement.whole([0, 1, 0], 3))
    halves = TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1))
    assert "8 columns of 't0', which has 4" in violation(task, Placement.whole([0, 1, 0], 2).with_table(0, halves))


def test_a_device_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"devices \(2,\).*0\.\.1"):
        Placement.whole([0, 2], 2)


def test_whole_tables_have_a_device_each_and_others_have_none():
    placement = Placement.whole(torch.tensor([1, 0, 1]), 2)
    assert placement.is_whole
    assert placement.is_by_columns
    assert placement.device.tolist() == [1, 0, 1]
    split = placement.with_table(0, TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1)))
    assert split.is_by_columns
    assert not split.is_whole
    with pytest.raises(ValueError, match="column_wise"):
        split.device  # noqa: B018


@pytest.mark.parametrize(
    ("sharding_type", "columns", "where"),
    [
        ("table_wise", (), ()),
        ("table_wise", ((0, 4),), (0,)),
        ("row_wise", (), (0,)),
        ("column_wise", (), (0,)),
        ("column_wise", ((0, 4), (8, 12)), (0, 1)),
        ("column_wise", ((0, 4), (4, 8)), (0,)),
    ],
)
def test_columns_and_places_must_be_those_of_the_way_to_shard(sharding_type, columns, where):
    with pytest.raises(ValueError, match=r"column|place"):
        TableSharding(sharding_type, columns, where)
