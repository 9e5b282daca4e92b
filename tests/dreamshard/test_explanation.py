from dataclasses import replace

import pytest
import torch

from dreamshard import read_tables
from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.explanation import HOT_SHARE, explain, table_shares, uneven_ms
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.tables import ModelTable, Placement, TableSharding, block_shares, concatenate
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.workloads import Lookups, list_tables, model_tables, statistics
from dreamshard.workloads.table_list import check_records
from tests.helpers.tables import FOUR_DEVICES_ON_TWO_HOSTS, sharded_task, tables_of, with_table
from tests.helpers.trained import learnt_placer

A100 = RooflinePlacer(PRESETS["a100"])
WITHOUT_CACHE = with_table(FOUR_DEVICES_ON_TWO_HOSTS, 4, TableSharding("column_wise", ((0, 4), (4, 8)), (1, 0)))


def task(**more):
    """Three tables; the first is looked up most."""
    return PlacementTask(tables_of([100_000] * 3, 64, [40.0, 10.0, 20.0]), 2, 2**40, **more)


def placed(of, devices):
    return Placement.whole(devices, of.num_devices).on_hosts_of(of.devices_per_host)


def reasons(of, placement):
    return {reason.table: reason for reason in explain(of, placement, A100).tables}


def test_each_device_names_its_phases_and_slow_tables():
    of, placement = task(), placed(task(), [0, 0, 1])
    explained = explain(of, placement, A100)
    costs = A100.predict(of, placement)
    assert [reason.total_ms for reason in explained.devices] == pytest.approx(costs.device_ms().tolist())
    assert list(explained.devices[0].phases_ms.values()) == pytest.approx(costs.phases_ms[0].tolist())
    assert [*explained.devices[0].saved_ms] == ["t0", "t1"]
    assert [*explained.devices[1].saved_ms] == ["t2"]
    without = replace(of, tables=of.tables.select([1, 2]))
    saved = costs.device_ms()[0] - A100.predict(without, placed(without, [0, 1])).device_ms()[0]
    assert explained.devices[0].saved_ms["t0"] == pytest.approx(float(saved), rel=1e-3)
    assert explained.tables[0].table == "t0"


def test_the_next_best_place_costs_the_moved_placement():
    of, placement = task(), placed(task(), [0, 0, 1])
    reason = reasons(of, placement)["t1"]
    moved_ms = float(A100.predict(of, placed(of, [0, 1, 1])).overall_ms())
    assert reason.next_place.sharding.where == (1,)
    assert reason.next_place.overall_ms == pytest.approx(moved_ms, rel=1e-3)
    assert reason.next_type.sharding.sharding_type == "column_wise"  # the only other type that is allowed


def test_without_room_or_by_constraint_there_is_no_other_place():
    tight = task(constraints=Constraints(sharding_types=("table_wise",)))
    tight = replace(tight, memory_bytes=int(tight.table_bytes[:2].sum()))
    by_name = reasons(tight, placed(tight, [0, 0, 1]))
    assert by_name["t2"].next_place is None
    assert by_name["t2"].bound == "nothing else fits in memory"
    assert by_name["t0"].next_place.sharding.where == (1,)
    pinned = task(constraints=Constraints(pinned={"t0": (0,)}, sharding_types=("table_wise",)))
    reason = reasons(pinned, placed(pinned, [0, 0, 1]))["t0"]
    assert (reason.next_place, reason.bound) == (None, "no other place is open to it alone")


def test_tables_on_all_devices_contribute_to_all():
    of = task(constraints=ANY_SHARDING)
    placement = with_table(placed(of, [0, 0, 1]), 0, TableSharding("row_wise"))
    assert all("t0" in device.saved_ms for device in explain(of, placement, A100).devices)
    reason = reasons(of, placement)["t0"]
    assert (reason.sharding, reason.next_place) == (TableSharding("row_wise"), None)
    next_ms = float(A100.predict(of, with_table(placement, 0, reason.next_type.sharding)).overall_ms())
    assert reason.next_type.overall_ms == pytest.approx(next_ms, rel=1e-3)


def test_no_shard_is_offered_that_is_too_narrow_or_wide():
    of = task(constraints=Constraints(narrowest_columns_of={"t0": 48, "t1": 32}))
    by_name = reasons(of, placed(of, [0, 0, 1]))
    assert by_name["t0"].next_type is None
    wide = PlacementTask(tables_of([5], 1028), 2, 2**40, constraints=ANY_SHARDING)
    reason = reasons(wide, placed(wide, [0]))["t0"]
    assert (reason.next_place, reason.next_type.sharding.sharding_type) == (None, "column_wise")
    assert by_name["t1"].next_type.sharding.sharding_type == "column_wise"


@pytest.mark.parametrize(
    ("placement", "predictor"),
    [(FOUR_DEVICES_ON_TWO_HOSTS, A100), (WITHOUT_CACHE, A100), (WITHOUT_CACHE, learnt_placer())],
)
def test_shares_add_up_to_what_each_device_costs_and_holds(placement, predictor):
    task = sharded_task()
    shares = table_shares(task, placement, predictor)
    expected = predictor.predict(task, placement).phases_ms
    summed = shares.rest_ms.index_add(0, shares.device, shares.phases_ms)
    torch.testing.assert_close(summed, expected.double(), rtol=1e-4, atol=1e-6)
    assert (shares.phases_ms >= 0).all()
    held = torch.zeros(4, dtype=torch.int64).index_add_(0, shares.device, shares.memory_bytes)
    assert held.tolist() == Shards.of(task, placement).memory_bytes().tolist()


def test_compute_is_divided_by_savings_and_exchange_by_columns():
    task = PlacementTask(tables_of([100_000] * 3, [64, 32, 64], [40.0, 10.0, 20.0]), 2, 2**40)
    shares = table_shares(task, placed(task, [0, 0, 1]), A100)
    costs = A100.predict(task, placed(task, [0, 0, 1])).phases_ms[0]
    saved = []
    for kept in ([1, 2], [0, 2]):
        less = PlacementTask(task.tables.select(kept), 2, 2**40)
        saved.append(costs[0] - A100.predict(less, placed(less, [0, 1])).phases_ms[0, 0])
    assert float(shares.phases_ms[0, 0] / shares.phases_ms[1, 0]) == pytest.approx(float(saved[0] / saved[1]))
    assert float(shares.phases_ms[0, 1] / shares.phases_ms[1, 1]) == pytest.approx(64 / 32)


H100, B200 = (RooflinePlacer(PRESETS[name]) for name in ("h100", "b200"))


def row_wise(tables, num_devices=8, hot=None, **options) -> tuple[PlacementTask, Placement]:
    share = tables.block_share if hot is None else block_shares([[hot, *[(1 - hot) / 7] * 7]] * len(tables))
    tables = replace(tables, block_share=share)
    task = PlacementTask(tables, num_devices, 2**40, constraints=ANY_SHARDING, **options)
    return task, Placement((TableSharding("row_wise"),) * len(tables), num_devices, num_devices)


@pytest.mark.parametrize(("rows", "num_devices", "within"), [(6400, 8, 1), (3, 3, 40), (1_000_003, 4, 40)])
def test_a_block_of_rows_gets_the_lookups_counted_in_it(rows, num_devices, within):
    ids = (rows * torch.rand(4000, generator=torch.Generator().manual_seed(0)) ** 6).long()
    lookups = Lookups(ids, torch.arange(1001) * 4)
    shards = Shards.of(*row_wise(statistics(ModelTable("t", rows, 8), lookups), num_devices))
    counted = [len(lookups.of_rows(first, end).indices) for first, end in shards.rows.tolist()]
    assert counted[0] > 2 * 4000 / num_devices, "the first rows are hot"
    assert (shards.tables.lookups - torch.tensor(counted)).abs().max() <= within
    assert (shards.tables.unique_rows <= shards.tables.lookups).all()


def test_a_list_gives_shares_of_any_number_of_blocks(tmp_path):
    file = tmp_path / "tables.csv"
    file.write_text("name,rows,dim,pooling_factor,block_share\nhot,8000,8,4,0.7+0.1+0.1+0.1\neven,8000,8,4,\n")
    tables = read_tables(file)
    by_device = Shards.of(*row_wise(tables)).tables.pooling_factor.tolist()
    assert by_device == pytest.approx([1.4, 1.4, *[0.2] * 6, *[0.5] * 8])
    again = model_tables([replace(table, block_share=None) for table in list_tables(file)], defaults=tables).tables
    assert torch.equal(again.block_share, tables.block_share), "of the ingested table"
    assert torch.equal(concatenate([tables.select([0]), tables_of([5])]).block_share[0], tables.block_share[0])


def test_known_hot_rows_are_placed_no_worse_than_assumed_even():
    tables = tables_of([10**6] * 12, 64, [30.0] * 12)
    (known, _), (assumed, _) = row_wise(tables, hot=0.9), row_wise(tables)
    aware_ms, blind_ms = (float(H100.predict(known, H100.place(task)).overall_ms()) for task in (known, assumed))
    assert aware_ms <= blind_ms


def test_the_price_of_unevenness_is_of_tables_assumed_even():
    tables = tables_of([10**6] * 3, 64, [30.0] * 3)
    (task, placement), (known, _) = row_wise(tables), row_wise(tables, hot=HOT_SHARE)
    assert uneven_ms(task, placement, H100) == pytest.approx(float(H100.predict(known, placement).overall_ms()))
    assert uneven_ms(task, placement, H100) > 1.5 * float(H100.predict(task, placement).overall_ms())
    assert uneven_ms(known, placement, H100) is None, "their shares are known"
    assert uneven_ms(task, Placement.whole([0, 1, 2], 8), H100) is None, "no rows are spread"


def test_a_hot_rank_of_eight_b200_is_predicted():
    # AMD-AGI/Primus-DLRM@161a59e0 doc/perf_analysis.md: the traced rank sends 6.63 of 9.44 GB in 8.38 ms
    sizes = {9_390_624: 1501, 1_293_395: 1501, 3_367_692: 1501, 1_000_001: 1}
    same = {"dim": 64, "pooling": "none"}
    listed = {
        f"t{n}": {"name": n, "rows": n, "lookups": 8192 * k, "pooling_factor": k} | same for n, k in sizes.items()
    }
    tables = model_tables(check_records(listed)).tables
    (task, placement), (even, _) = (row_wise(tables, hot=hot, batch_size=8192) for hot in (0.702, None))
    assert float(Shards.of(task, placement).carried[:, 0].max()) * 4 * 8192 == pytest.approx(6.63e9, rel=0.01)
    hot_ms, even_ms = (B200.predict(variant, placement).phases_ms[0] for variant in (task, even))
    assert 8.38 / 1.5 < float(hot_ms[1]) < 8.38 * 1.5
    assert float(hot_ms[[0, 3]].sum()) > 4 * float(even_ms[[0, 3]].sum()), "5.6 times the lookups"
    assert 12.46 / 1.5 < float(hot_ms[[0, 3]].sum()) < 12.46 * 1.5
