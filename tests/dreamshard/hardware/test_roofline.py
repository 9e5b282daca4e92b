import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.costs import DeviceCosts
from dreamshard.hardware import roofline
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.roofline import (
    HOST_LINK_SHARE,
    backward_s,
    figures_of,
    forward_kernel_s,
    forward_s,
    placed_loads,
    sharding_costs,
    sort_kernels_s,
    update_kernels_s,
)
from dreamshard.tables import SHARDING_TYPES, Placement, Tables, TableSharding
from dreamshard.tasks import PlacementTask, Shards
from tests.benchmarks.bench_presets import kernel_times
from tests.helpers.tables import BATCH, tables_of, tables_of_dims
from tests.helpers.testbeds import table_loads

A100, H100, RTX2080TI, V100 = (PRESETS[name] for name in ("a100", "h100", "rtx2080ti", "v100"))


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
    assert loads[:, roofline.READ_BYTES].tolist() == [2 * BATCH * size for size in (32, 32, 64)]
    for precision, size in (("fp32", 64), ("bf16", 32), ("int8", 32)):  # 16 + 8 bytes of int8 are one sector
        task = replace(task_of_one(), precision_of={"t0": precision})
        assert float(loads_of(task, "row_wise")[:, roofline.READ_BYTES].sum()) == 2 * BATCH * size


def test_every_vector_of_a_sample_is_written_and_sent():
    pooled = task_of_one(lookups=[20 * BATCH])
    many = replace(pooled, tables=replace(pooled.tables, poolings=torch.tensor([20.0], dtype=torch.float64)))
    more = (loads_of(many, "table_wise", where=(0,)) - loads_of(pooled, "table_wise", where=(0,)))[0]
    assert more[roofline.DIM] == 19 * 16
    assert more[roofline.STREAM_BYTES] == 19 * BATCH * (16 * 4 + 8)
    assert shards_of(many, "table_wise", where=(1,)).traffic.tolist() == [[20 * 16, 0, 0, 0]]
    assert (shards_of(many, "row_wise").carried[:, 1] == 20 * 16).all(), "every device has partial sums of all"
    sequence = replace(many, tables=replace(many.tables, poolings=torch.zeros(1), pooling_factor=torch.tensor([20.0])))
    assert shards_of(sequence, "table_wise", where=(0,)).traffic.tolist() == [[20 * 16, 0, 0, 0]]
    assert shards_of(sequence, "row_wise").traffic.tolist() == [[20 * 16 / 4, 0, 0, 0]] * 4, "each row has one device"


def test_reads_of_all_bins_add_up_to_the_lookups():
    bins = torch.rand(3, 17, generator=torch.Generator().manual_seed(0))
    tables = replace(tables_of_dims([8, 8, 8], batch_size=BATCH), bins=bins / bins.sum(dim=1, keepdim=True))
    reads = table_loads(tables, BATCH)[:, roofline.HOT_BYTES : roofline.HOST_ROW_BYTES]
    torch.testing.assert_close(reads.sum(dim=1), torch.full((3,), 2.0 * BATCH * 32, dtype=torch.float64))


def test_a_block_of_rows_shares_lookups_and_writes_whole_batches():
    task = task_of_one()
    whole, blocks = table_loads(task.tables, BATCH)[0], loads_of(task, "row_wise")
    assert blocks.shape[0] == 4
    for column in (roofline.ROWS, roofline.LOOKUPS, roofline.READ_BYTES):
        torch.testing.assert_close(blocks[:, column].sum(), whole[column])
    assert (blocks[:, roofline.STREAM_BYTES] > BATCH * (8 + 16 * 4)).all()
    assert (blocks[:, roofline.DIM] == 0).all()
    assert (blocks[:, roofline.GRAD_BYTES] == BATCH / 2 * 64).all()  # 2 lookups a sample, a quarter of them here


def test_a_copy_looks_up_its_samples_and_rewrites_all_rows():
    task = task_of_one(optimizer="rowwise_adagrad")
    whole, copies = table_loads(task.tables, BATCH, "fp32", "rowwise_adagrad")[0], loads_of(task, "data_parallel")
    for column in (roofline.LOOKUPS, roofline.STREAM_BYTES):
        torch.testing.assert_close(copies[:, column].sum(), whole[column])
    assert (copies[:, roofline.DENSE_BYTES] == 1000 * 16 * 4 * 2 + 2 * (1000 * 16 * 4 + 1000 * 4)).all()
    assert (copies[:, roofline.DIM] == 0).all()


@pytest.mark.parametrize(("cached_share", "missed"), [(1.0, 0.0), (0.1, 100.0), (0.25, 500 / 6), (0.01, 190.0)])
def test_a_cache_misses_the_coldest_rows_first(cached_share, missed):
    # Of 1000 rows 100 are looked up 3 or 4 times, and 100 once; these share the cache with the 800 that are not looked up.
    task = task_of_one(bins=[[0.5, 0.0, 0.5]], lookups=[450], unique_rows=[200], num_devices=1, optimizer="adam")
    task = replace(task, tables=replace(task.tables, pooling_factor=torch.tensor([450 / BATCH])))
    loads = loads_of(task, "table_wise", where=(0,), cached_share=cached_share)[0]
    columns = (roofline.HOST_ROW_BYTES, roofline.HOST_STATE_BYTES, roofline.UPDATE_BYTES, roofline.CACHED_LOOKUPS)
    expected = [missed * 64, 200 * 128, 2 * 200 * 64, 450]
    assert loads[list(columns)].tolist() == pytest.approx(expected, rel=1e-5)


def test_missed_rows_cross_the_link_before_lookups_moments_after():
    task = task_of_one(rows=10**6, num_devices=1, optimizer="adam", unique_rows=[2000])
    all_kept, half = (loads_of(task, "table_wise", where=(0,), cached_share=share)[0].numpy() for share in (1.0, 0.5))
    figures, link = figures_of(H100, BATCH), HOST_LINK_SHARE * H100.host_bytes_per_s
    slower = figures_of(replace(H100, host_bytes_per_s=H100.host_bytes_per_s / 2), BATCH)
    assert forward_s(figures, half) - forward_s(figures, all_kept) == pytest.approx(
        half[roofline.HOST_ROW_BYTES] / link
    )
    later_s = backward_s(slower, all_kept) - backward_s(figures, all_kept)
    assert later_s == pytest.approx(all_kept[roofline.HOST_STATE_BYTES] / link)


def test_host_memory_needs_its_link_and_one_host_its_devices():
    task, spec = task_of_one(num_devices=1), replace(H100, host_bytes_per_s=None)
    with pytest.raises(ValueError):
        sharding_costs(shards_of(task, "table_wise", where=(0,), cached_share=0.5), BATCH, spec)
    assert sharding_costs(shards_of(task, "table_wise", where=(0,)), BATCH, spec).phases_ms[..., 0] > 0
    task = replace(task_of_one(), devices_per_host=2)
    with pytest.raises(ValueError):
        sharding_costs(shards_of(task, "table_row_wise", where=(0,)), BATCH, H100)


SMALL, LARGE = 4096, 65_536
FIGURES = figures_of(A100, LARGE)


def of_dims(dims: list[int], **options) -> Tables:
    return tables_of_dims(dims, batch_size=SMALL, **options)


def costs(tables: Tables, spec=A100) -> DeviceCosts:
    placement = Placement.whole([0] * len(tables), 1)
    return sharding_costs(Shards.of(PlacementTask(tables, 1, 2**62), placement), SMALL, spec)


def test_fusing_two_tables_costs_less_than_both_alone():
    for spec in PRESETS.values():
        fused, alone = (float(costs(of_dims(dims), spec=spec).overall_ms()) for dims in ([32, 32], [32]))
        assert alone < fused < 2 * alone


def test_a_wide_table_idles_lanes_of_the_narrow_ones_beside_it():
    # So many lookups of cached rows that instruction issue decides.
    narrow, wide = (costs(of_dims([8] * 9 + [last], pooling=200.0, rows=100)) for last in (8, 128))
    assert float(wide.phases_ms[..., 0]) > 2 * float(narrow.phases_ms[..., 0])


def test_reuse_is_cheaper_where_the_hot_rows_fit_the_cache():
    tables = of_dims([64] * 2, rows=10**6, pooling=50.0)
    large = replace(RTX2080TI, cache_bytes=10 * RTX2080TI.cache_bytes)
    assert costs(tables, spec=large).phases_ms[..., 0] < costs(tables, spec=RTX2080TI).phases_ms[..., 0]


def test_a_table_without_lookups_makes_no_phase_shorter():
    read = of_dims([64] * 2, rows=10**6, pooling=50.0)
    more = of_dims([64] * 8, rows=10**6, pooling=50.0)
    more = replace(more, pooling_factor=more.pooling_factor * (torch.arange(8) < 2))
    assert (costs(more, spec=RTX2080TI).phases_ms >= costs(read, spec=RTX2080TI).phases_ms).all()


def test_sorting_takes_a_pass_per_8_bits_of_rows():
    few, many = (costs(of_dims([16], rows=rows)) for rows in (2**16, 2**16 + 1))
    assert many.phases_ms[..., 3] > few.phases_ms[..., 3]
    assert many.phases_ms[..., 0] == few.phases_ms[..., 0]


def table(rows: int, pooling: float, dim: int = 128, batch_size: int = LARGE) -> Tables:
    unique = min(rows, int(pooling * batch_size))
    return tables_of([rows], dim, pooling, batch_size=batch_size, unique_rows=[unique])


def whole_loads(tables: Tables, batch_size: int = LARGE, precision="fp32", optimizer="sgd"):
    return table_loads(tables, batch_size, precision, optimizer)[0].numpy()


def test_a_tiny_table_is_updated_as_fast_as_lookups_are_sorted():
    few, twice, many = whole_loads(table(3, 10.0)), whole_loads(table(3, 20.0)), whole_loads(table(10**6, 10.0))
    assert backward_s(FIGURES, few) < min(0.5e-3, backward_s(FIGURES, many))  # alone it once took 94.9 ms
    assert update_kernels_s(FIGURES, few) > 0.1 * update_kernels_s(FIGURES, many)
    assert update_kernels_s(FIGURES, twice) == pytest.approx(2 * update_kernels_s(FIGURES, few), rel=0.05)


def test_a_batch_of_a_tenth_of_the_warps_gets_a_part_of_a_device():
    small = V100.multiprocessors * V100.warps_per_multiprocessor // 10
    few, many = (
        forward_kernel_s(figures_of(V100, batch), whole_loads(table(10**6, 8.0, batch_size=batch), batch))
        for batch in (small, 20 * small)
    )
    assert 2 < 20 * few / many < 5


@pytest.mark.parametrize(("rows", "pooling"), [(3, 1.0), (1000, 50.0), (10**7, 1.0), (10**7, 100.0)])
def test_half_precision_moves_fewer_bytes_and_state_more(rows, pooling):
    full, half = (whole_loads(table(rows, pooling), precision=precision) for precision in ("fp32", "fp16"))
    adagrad = whole_loads(table(rows, pooling), optimizer="rowwise_adagrad")
    assert forward_kernel_s(FIGURES, half) < forward_kernel_s(FIGURES, full)
    assert update_kernels_s(FIGURES, half) < update_kernels_s(FIGURES, full) < update_kernels_s(FIGURES, adagrad)
    assert sort_kernels_s(FIGURES, half) == sort_kernels_s(FIGURES, full)


def test_public_kernel_times_are_predicted_within_a_tenth():
    for (gpu, kind), times in kernel_times().items():
        logs = np.log([predicted / measured for predicted, measured in times])
        if len(logs) >= 4:
            assert 0.9 <= np.exp(np.median(logs)) <= 1.1, (gpu, kind)
        assert np.exp(logs.std()) <= (1.5 if kind == "small calls" else 1.25), (gpu, kind)


def test_a_named_cache_of_machine_code_is_of_one_version(tmp_path):
    """Numba alone would run machine code that was compiled before an upgrade."""
    printing = "from dreamshard.hardware import roofline; import numba; print(numba.config.CACHE_DIR)"
    command, folder = [sys.executable, "-c", printing], {"NUMBA_CACHE_DIR": str(tmp_path)}
    printed = subprocess.run(command, env=os.environ | folder, capture_output=True, text=True, check=True)
    assert Path(printed.stdout.strip()).parent == tmp_path
