from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware import loads as at
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.loads import placed_loads
from dreamshard.hardware.roofline import HOST_LINK_SHARE, backward_s, figures_of, forward_s, sharding_costs
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import BATCH, tables_of, tables_of_dims
from tests.helpers.testbeds import table_loads

H100 = PRESETS["h100"]


def task_of_one(rows=1000, num_devices=4, **options) -> PlacementTask:
    constraints = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    how = {name: options.pop(name) for name in ("lookups", "unique_rows", "bins") if name in options}
    return PlacementTask(tables_of([rows], 16, **how), num_devices, 2**40, constraints=constraints, **options)


def shards_of(task: PlacementTask, sharding_type: str, **sharding) -> Shards:
    table = TableSharding(sharding_type, **sharding)
    return Shards.of(task, Placement((table,), task.num_devices, task.num_devices))


def loads_of(task: PlacementTask, sharding_type: str, **sharding):
    return placed_loads(shards_of(task, sharding_type, **sharding), BATCH)


def test_rows_of_each_precision_cost_whole_sectors():
    loads = table_loads(tables_of_dims([4, 8, 16], batch_size=BATCH), BATCH)
    assert loads[:, at.READ_BYTES].tolist() == [2 * BATCH * size for size in (32, 32, 64)]
    for precision, size in (("fp32", 64), ("bf16", 32), ("int8", 32)):  # 16 + 8 bytes of int8 are one sector
        task = replace(task_of_one(), precision_of={"t0": precision})
        assert float(loads_of(task, "row_wise")[:, at.READ_BYTES].sum()) == 2 * BATCH * size


def test_every_vector_of_a_sample_is_written_and_sent():
    pooled = task_of_one(lookups=[20 * BATCH])
    many = replace(pooled, tables=replace(pooled.tables, poolings=torch.tensor([20.0], dtype=torch.float64)))
    more = (loads_of(many, "table_wise", where=(0,)) - loads_of(pooled, "table_wise", where=(0,)))[0]
    assert more[at.DIM] == 19 * 16
    assert more[at.STREAM_BYTES] == 19 * BATCH * (16 * 4 + 8)
    assert shards_of(many, "table_wise", where=(1,)).traffic.tolist() == [[20 * 16, 0, 0, 0]]
    assert shards_of(many, "row_wise").most_traffic()[1] == 20 * 16, "every device has partial sums of all"
    sequence = replace(many, tables=replace(many.tables, poolings=torch.zeros(1), pooling_factor=torch.tensor([20.0])))
    assert shards_of(sequence, "table_wise", where=(0,)).traffic.tolist() == [[20 * 16, 0, 0, 0]]
    assert shards_of(sequence, "row_wise").traffic.tolist() == [[20 * 16 / 4, 0, 0, 0]] * 4, "each row has one device"


def test_reads_of_all_bins_add_up_to_the_lookups():
    bins = torch.rand(3, 17, generator=torch.Generator().manual_seed(0))
    tables = replace(tables_of_dims([8, 8, 8], batch_size=BATCH), bins=bins / bins.sum(dim=1, keepdim=True))
    reads = table_loads(tables, BATCH)[:, at.HOT_BYTES : at.HOST_ROW_BYTES]
    torch.testing.assert_close(reads.sum(dim=1), torch.full((3,), 2.0 * BATCH * 32, dtype=torch.float64))


def test_a_block_of_rows_shares_lookups_and_writes_whole_batches():
    task = task_of_one()
    whole, blocks = table_loads(task.tables, BATCH)[0], loads_of(task, "row_wise")
    assert blocks.shape[0] == 4
    for each in (at.ROWS, at.LOOKUPS, at.READ_BYTES):
        torch.testing.assert_close(blocks[:, each].sum(), whole[each])
    assert (blocks[:, at.STREAM_BYTES] > BATCH * (8 + 16 * 4)).all()
    assert (blocks[:, at.DIM] == 0).all()
    assert (blocks[:, at.GRAD_BYTES] == BATCH / 2 * 64).all()  # 2 lookups a sample, a quarter of them here


def test_a_copy_looks_up_its_samples_and_rewrites_all_rows():
    task = task_of_one(optimizer="rowwise_adagrad")
    whole, copies = table_loads(task.tables, BATCH, "fp32", "rowwise_adagrad")[0], loads_of(task, "data_parallel")
    for each in (at.LOOKUPS, at.STREAM_BYTES):
        torch.testing.assert_close(copies[:, each].sum(), whole[each])
    assert (copies[:, at.DENSE_BYTES] == 1000 * 16 * 4 * 2 + 2 * (1000 * 16 * 4 + 1000 * 4)).all()
    assert (copies[:, at.DIM] == 0).all()


@pytest.mark.parametrize(("cached_share", "missed"), [(1.0, 0.0), (0.1, 100.0), (0.25, 500 / 6), (0.01, 190.0)])
def test_a_cache_misses_the_coldest_rows_first(cached_share, missed):
    # Of 1000 rows 100 are looked up 3 or 4 times, and 100 once; these share the cache with the 800 that are not looked up.
    task = task_of_one(bins=[[0.5, 0.0, 0.5]], lookups=[450], unique_rows=[200], num_devices=1, optimizer="adam")
    task = replace(task, tables=replace(task.tables, pooling_factor=torch.tensor([450 / BATCH])))
    loads = loads_of(task, "table_wise", where=(0,), cached_share=cached_share)[0]
    columns = (at.HOST_ROW_BYTES, at.HOST_STATE_BYTES, at.UPDATE_BYTES, at.CACHED_LOOKUPS)
    expected = [missed * 64, 200 * 128, 2 * 200 * 64, 450]
    assert loads[list(columns)].tolist() == pytest.approx(expected, rel=1e-5)


def test_missed_rows_cross_the_link_before_lookups_moments_after():
    task = task_of_one(rows=10**6, num_devices=1, optimizer="adam", unique_rows=[2000])
    all_kept, half = (loads_of(task, "table_wise", where=(0,), cached_share=share)[0].numpy() for share in (1.0, 0.5))
    figures, link = figures_of(H100, BATCH), HOST_LINK_SHARE * H100.host_bytes_per_s
    slower = figures_of(replace(H100, host_bytes_per_s=H100.host_bytes_per_s / 2), BATCH)
    assert forward_s(figures, half) - forward_s(figures, all_kept) == pytest.approx(half[at.HOST_ROW_BYTES] / link)
    later_s = backward_s(slower, all_kept) - backward_s(figures, all_kept)
    assert later_s == pytest.approx(all_kept[at.HOST_STATE_BYTES] / link)


def test_host_memory_needs_its_link_and_one_host_its_devices():
    task, spec = task_of_one(num_devices=1), replace(H100, host_bytes_per_s=None)
    with pytest.raises(ValueError):
        sharding_costs(shards_of(task, "table_wise", where=(0,), cached_share=0.5), BATCH, spec)
    assert sharding_costs(shards_of(task, "table_wise", where=(0,)), BATCH, spec).phases_ms[..., 0] > 0
    task = replace(task_of_one(), devices_per_host=2)
    with pytest.raises(ValueError):
        sharding_costs(shards_of(task, "table_row_wise", where=(0,)), BATCH, H100)
