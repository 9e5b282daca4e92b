import math

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.costs import DeviceCosts
from dreamshard.tables import SHARDING_TYPES, Placement, TableSharding, even_columns
from dreamshard.tasks import PlacementTask, Shards, violation
from tests.helpers.samples import sample_of
from tests.helpers.tables import FOUR_DEVICES_ON_TWO_HOSTS, ROW_BYTES, sharded_task, tables_of, task_of, with_table


def test_every_shard_has_its_rows_lookups_and_memory():
    shards = Shards.of(sharded_task(optimizer="rowwise_adagrad"), FOUR_DEVICES_ON_TWO_HOSTS)
    held = list(zip(shards.tables.labels, shards.device.tolist(), shards.device_bytes.tolist(), strict=True))
    assert held[0] == ("a[0:16]", 0, 25 * (16 * 4 + 4))
    assert held[4] == ("b[0:8]", 0, 10 * (8 * 4 + 4) + 10 * 8 * 4)
    assert [device for name, device, _ in held if name == "c[16:32]"] == [2, 3]
    assert held[-1] == ("e[0:8]", 3, 250 * (8 * 4 + 16) + 500 * 4)
    assert shards.host_bytes[-1] == 500 * (8 * 4 + 4)
    by_table = torch.zeros(5, dtype=torch.int64).index_add_(0, shards.table, shards.tables.lookups)
    assert by_table.tolist() == [200, 100, 600, 100, 400], "a column shard repeats its table's lookups"
    assert shards.batch_share[4] == 0.25


def test_collectives_carry_what_each_sharding_type_exchanges():
    shards = Shards.of(sharded_task(), FOUR_DEVICES_ON_TWO_HOSTS)
    dims, rows, copies, hosts = shards.per_device(shards.traffic).T.tolist()
    assert (dims, rows[0], copies) == ([0, 0, 4, 0], 16, [10 * 8 * 4] * 4)
    assert hosts == [16, 16, 16 + 8, 16 + 8]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"caching": False}, "table 'e' is in host memory"),
        ({"cached_share_of": {"e": 0.0}}, "table 'e' is in host memory"),
        ({"cached_share_of": {"d": 0.5}}, "table 'd' is in device memory"),
        ({"sharding_types": ("table_wise",)}, "'a' is sharded row_wise, but may be table_wise"),
        ({"pinned": {"d": (1,)}}, "'d' has a shard on device 2, which it may not use"),
        ({"memory_bytes_of": {3: 0}}, "device 3 would hold"),
        ({"apart": (frozenset("ad"),)}, "['a', 'd'] are to be apart, but share a device"),
        ({"together": (frozenset("ad"),)}, "['a', 'd'] do not share one device"),
        ({"reserve_bytes": 99_000}, "of tables, but has"),
    ],
)
def test_what_violates_a_constraint_is_named(changed, text):
    allowed = {"sharding_types": SHARDING_TYPES, "caching": True}
    assert text in violation(sharded_task(constraints=Constraints(**(allowed | changed))), FOUR_DEVICES_ON_TWO_HOSTS)


def test_columns_and_rows_are_covered_once():
    for parts in (1, 2, 3):
        assert [end - start for start, end in even_columns(24, parts)] == [24 // parts] * parts
    blocks = {rows: [block[1] for block in TableSharding("row_wise").blocks(rows, 4, 4, 4)] for rows in (10, 2)}
    assert blocks == {10: [(0, 3), (3, 6), (6, 9), (9, 10)], 2: [(0, 1), (1, 2), (2, 2), (2, 2)]}


HALVES = TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1))


def test_a_legal_placement_fits_its_task_and_every_device():
    task, full = PlacementTask(tables_of([5, 3, 2], dim=4), 2, 7 * ROW_BYTES), Placement.whole([0, 1, 0], 2)
    assert violation(task, full) == ""  # filled to the last byte
    assert "of 2 tables" in violation(task, Placement.whole([0, 1], 2))
    assert "on 3 devices" in violation(task, Placement.whole([0, 1, 0], 3))
    assert "8 columns of 't0', which has 4" in violation(task, with_table(full, 0, HALVES))
    wide = PlacementTask(tables_of([5] * 3, dim=1028), 2, 2**20)
    assert "'t0' has a shard of over 1024 columns" in violation(wide, full)
    assert violation(wide, full, is_measured=True) == ""


def test_whole_tables_have_a_device_each_and_others_have_none():
    placement = Placement.whole(torch.tensor([1, 0, 1]), 2)
    assert placement.is_whole
    assert placement.device.tolist() == [1, 0, 1]
    split = with_table(placement, 0, HALVES)
    assert not split.is_whole
    with pytest.raises(ValueError):
        split.device  # noqa: B018
    with pytest.raises(ValueError):
        Placement.whole([0, 2], 2)


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
def test_columns_and_places_must_be_those_of_the_sharding_type(sharding_type, columns, where):
    with pytest.raises(ValueError):
        TableSharding(sharding_type, columns, where)


def test_tables_and_column_shards_are_selected_in_order():
    tables = tables_of([10, 20], dim=[8, 16])
    assert tables.select([1, 0]).names == ("t1", "t0")
    shards = tables.named(["t1", "t0", "t1"], [[0, 4], [0, 8], [4, 16]])
    assert shards.labels == ["t1[0:4]", "t0", "t1[4:16]"]
    assert (shards.rows.tolist(), shards.dim.tolist()) == ([20, 10, 20], [4, 8, 12])
    assert tables.dim.tolist() == [8, 16], "the pool keeps its dims"


def test_wrong_figures_are_refused():
    for wrong in ({"rows": [0]}, {"rows": [5], "dim": [6]}, {"rows": [5], "pooling": [-1.0]}):
        with pytest.raises(ValueError):
            tables_of(**wrong)
    for ms in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError):
            sample_of(task_of([1, 1], 2, 10), Placement.whole([0, 1], 2), [1.0, ms])


def test_of_devices_as_slow_one_will_be_slower_than_predicted():
    phases_ms = torch.tensor([[[4.0, 1, 1, 4]] * 2, [[4.0, 1, 1, 4], [0.0] * 4], [[4.0, 1, 1, 4], [4.0, 1, 1, 2]]])
    both = 10 * (1 + 0.05 / math.sqrt(math.pi))  # the mean of the larger of two normal draws
    costs = DeviceCosts(phases_ms, relative_error=0.05).overall_ms().tolist()
    assert costs[:2] == pytest.approx([both, 10], rel=1e-3)
    assert 10 < costs[2] < both
    assert DeviceCosts(phases_ms).overall_ms().tolist() == [10, 10, 10]
