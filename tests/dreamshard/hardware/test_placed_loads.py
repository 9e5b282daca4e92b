"""Loads and kernels of shards that are neither whole tables nor columns, on figures that are easy to check."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.loads import (
    CACHED_LOOKUPS,
    DENSE_BYTES,
    DIM,
    GRAD_BYTES,
    HOST_READ_BYTES,
    HOST_STATE_BYTES,
    HOST_WRITTEN_BYTES,
    LOOKUPS,
    NUM_LOADS,
    READ_BYTES,
    ROWS,
    STREAM_BYTES,
    UPDATE_BYTES,
    placed_loads,
    table_loads,
)
from dreamshard.hardware.roofline import HOST_LINK_SHARE, backward_s, figures_of, forward_s, sharding_costs
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import BATCH, pool_of, tables_of

H100 = PRESETS["h100"]


def task_of_one(rows=1000, num_devices=4, **options) -> PlacementTask:
    constraints = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    how = {name: options.pop(name) for name in ("lookups", "unique_rows", "bins") if name in options}
    return PlacementTask(tables_of([rows], 16, **how), num_devices, 2**40, constraints=constraints, **options)


def shards_of(task: PlacementTask, **sharding) -> Shards:
    table = TableSharding(**sharding)
    return Shards.of(task, Placement((table,), task.num_devices, task.num_devices))


def test_whole_tables_and_columns_have_the_loads_of_tables():
    pool = pool_of(20)
    task = PlacementTask(pool, 2, 2**40, "fp16", "adam")
    found = placed_loads(task, Shards.of(task, Placement.whole(torch.arange(20) % 2, 2)), 500)
    assert torch.equal(found[:, :NUM_LOADS], table_loads(pool, 500, "fp16", "adam"))
    assert (found[:, NUM_LOADS:] == 0).all()


def test_a_block_of_rows_has_its_share_of_lookups_but_writes_for_the_whole_batch():
    task = task_of_one()
    whole = table_loads(task.tables, BATCH, "fp32", "sgd")[0]
    blocks = placed_loads(task, shards_of(task, sharding_type="row_wise"), BATCH)
    assert blocks.shape[0] == 4
    for column in (ROWS, LOOKUPS, READ_BYTES):
        torch.testing.assert_close(blocks[:, column].sum(), whole[column])
    written = BATCH * (8 + 16 * 4)
    assert (blocks[:, STREAM_BYTES] > written).all()
    assert (blocks[:, DIM] == 0).all()
    assert (blocks[:, GRAD_BYTES] == BATCH / 2 * 64).all()  # 2 lookups a sample, a quarter of them here


def test_a_copy_looks_up_its_samples_and_rewrites_all_rows():
    task = task_of_one(optimizer="rowwise_adagrad")
    whole = table_loads(task.tables, BATCH, "fp32", "rowwise_adagrad")[0]
    copies = placed_loads(task, shards_of(task, sharding_type="data_parallel"), BATCH)
    torch.testing.assert_close(copies[:, LOOKUPS].sum(), whole[LOOKUPS])
    torch.testing.assert_close(copies[:, STREAM_BYTES].sum(), whole[STREAM_BYTES])
    dense_bytes = 1000 * 16 * 4 * 2 + 2 * (1000 * 16 * 4 + 1000 * 4)
    assert (copies[:, DENSE_BYTES] == dense_bytes).all()
    assert (copies[:, DIM] == 0).all()


@pytest.mark.parametrize(("cached_share", "missed"), [(1.0, 0.0), (0.1, 100.0), (0.25, 500 / 6), (0.01, 190.0)])
def test_a_cache_misses_the_coldest_rows_first(cached_share, missed):
    # Of 1000 rows 100 are looked up 3 or 4 times, and 100 once; these share the cache with the 800 that are not looked up.
    task = task_of_one(bins=[[0.5, 0.0, 0.5]], lookups=[450], unique_rows=[200], num_devices=1, optimizer="adam")
    task = replace(task, tables=replace(task.tables, pooling_factor=torch.tensor([450 / BATCH])))
    loads = placed_loads(
        task, shards_of(task, sharding_type="table_wise", where=(0,), cached_share=cached_share), BATCH
    )[0]
    assert float(loads[HOST_READ_BYTES]) == pytest.approx(missed * 64, rel=1e-5)
    assert loads[HOST_WRITTEN_BYTES] == loads[HOST_READ_BYTES]
    assert float(loads[HOST_STATE_BYTES]) == pytest.approx(200 * 128)
    assert float(loads[UPDATE_BYTES]) == pytest.approx(2 * 200 * 64)
    assert float(loads[CACHED_LOOKUPS]) == pytest.approx(450)


def test_missed_rows_cross_the_hosts_link_before_the_lookup_and_moments_after():
    task = task_of_one(rows=10**6, num_devices=1, optimizer="adam", unique_rows=[2000])
    one = [
        placed_loads(task, shards_of(task, sharding_type="table_wise", where=(0,), cached_share=share), BATCH)[0]
        for share in (1.0, 0.5)
    ]
    link = HOST_LINK_SHARE * H100.host_bytes_per_s
    without, with_misses = (forward_s(figures_of(H100, BATCH), loads.numpy()) for loads in one)
    assert with_misses - without == pytest.approx(float(one[1][HOST_READ_BYTES]) / link)
    slower = replace(H100, host_bytes_per_s=H100.host_bytes_per_s / 2)
    fast_s, slow_s = (backward_s(figures_of(spec, BATCH), one[0].numpy()) for spec in (H100, slower))
    later_s = slow_s - fast_s
    assert later_s == pytest.approx(float(one[0][HOST_STATE_BYTES]) / link)


def test_without_a_known_link_to_host_memory_only_tables_there_are_refused():
    task = task_of_one(num_devices=1)
    spec = replace(H100, host_bytes_per_s=None)
    in_host = shards_of(task, sharding_type="table_wise", where=(0,), cached_share=0.5)
    on_device = shards_of(task, sharding_type="table_wise", where=(0,))
    with pytest.raises(ValueError, match=r"in host memory, but the link of 'h100' to it is unknown.*host_bandwidth"):
        sharding_costs(task, in_host, BATCH, spec)
    assert sharding_costs(task, on_device, BATCH, spec).forward_compute_ms > 0


def test_rows_are_not_spread_over_more_devices_than_a_host_has():
    task = replace(task_of_one(), devices_per_host=2)
    shards = shards_of(task, sharding_type="table_row_wise", where=(0,))
    with pytest.raises(ValueError, match="over hosts of 4 devices, but task has 2 devices per host"):
        sharding_costs(task, shards, BATCH, H100)


def test_precisions_of_single_tables_read_their_own_bytes():
    task = task_of_one()
    shards = shards_of(task, sharding_type="row_wise")
    read = {
        precision: float(
            placed_loads(replace(task, precision_of={"t0": precision}), shards, BATCH)[:, READ_BYTES].sum()
        )
        for precision in ("fp32", "bf16", "int8")
    }
    assert read == {
        "fp32": 2 * BATCH * 64,
        "bf16": 2 * BATCH * 32,
        "int8": 2 * BATCH * 32,
    }  # 16 + 8 bytes are one sector
