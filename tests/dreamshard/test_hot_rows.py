from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.explain import HOT_SHARE, uneven_ms
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import Placement, TableSharding
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tables import block_shares, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import Lookups, WorkloadTable, fill_missing_columns, list_tables, read_tables, statistics
from dreamshard.workloads.table_list import check_records, with_ingested
from tests.helpers.tables import tables_of

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
    shards = Shards.of(*row_wise(statistics(WorkloadTable("t", rows, 8, lookups)), num_devices))
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
    again = with_ingested([replace(each, block_share=None) for each in list_tables(file)], tables)
    assert torch.equal(fill_missing_columns(again).block_share, tables.block_share), "of the ingested table"
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
    tables = fill_missing_columns(check_records(listed))
    (task, placement), (even, _) = (row_wise(tables, hot=hot, batch_size=8192) for hot in (0.702, None))
    assert float(Shards.of(task, placement).most_traffic()[0]) * 4 * 8192 == pytest.approx(6.63e9, rel=0.01)
    hot_ms, even_ms = (B200.predict(each, placement).phases_ms[0] for each in (task, even))
    assert 8.38 / 1.5 < float(hot_ms[1]) < 8.38 * 1.5
    assert float(hot_ms[[0, 3]].sum()) > 4 * float(even_ms[[0, 3]].sum()), "5.6 times the lookups"
    assert 12.46 / 1.5 < float(hot_ms[[0, 3]].sum()) < 12.46 * 1.5
