from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.hardware import loads as at
from dreamshard.hardware import roofline
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.roofline import (
    backward_s,
    figures_of,
    forward_kernel_s,
    sharding_costs,
    sort_kernels_s,
    update_kernels_s,
)
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from tests.benchmarks.bench_presets import kernel_times
from tests.helpers.tables import tables_of as helper_tables
from tests.helpers.tables import tables_of_dims
from tests.helpers.testbeds import table_loads

A100, RTX2080TI, V100 = (PRESETS[name] for name in ("a100", "rtx2080ti", "v100"))
BATCH, LARGE_BATCH = 4096, 65_536
FIGURES = figures_of(A100, LARGE_BATCH)


def tables_of(dims: list[int], **options) -> Tables:
    return tables_of_dims(dims, batch_size=BATCH, **options)


def costs(tables: Tables, spec=A100) -> DeviceCosts:
    placement = Placement.whole([0] * len(tables), 1)
    return sharding_costs(Shards.of(PlacementTask(tables, 1, 2**62), placement), BATCH, spec)


def test_fusing_two_tables_costs_less_than_both_alone():
    for spec in PRESETS.values():
        fused, alone = (float(costs(tables_of(dims), spec=spec).overall_ms()) for dims in ([32, 32], [32]))
        assert alone < fused < 2 * alone


def test_a_shard_with_hardly_any_work_costs_its_launches():
    found = costs(tables_of([4], pooling=0.0, rows=2))
    host_ms = (roofline.HOST_FORWARD_LAUNCHES + roofline.HOST_BACKWARD_LAUNCHES) * A100.launch_s * 1e3
    kernels_ms = (roofline.FORWARD_KERNELS + roofline.BACKWARD_KERNELS + 1) * A100.launch_s * 1e3
    assert host_ms < float(found.overall_ms()) < host_ms + 0.1 * kernels_ms


def test_a_huge_table_without_reuse_is_read_at_memory_bandwidth():
    count = BATCH * BATCH
    tables = tables_of([128], rows=2**40, pooling=float(BATCH))
    tables = replace(tables, unique_rows=torch.tensor([count]), bins=torch.eye(17)[:1])
    found = costs(tables, spec=replace(A100, num_sms=1, warps_per_sm=1, clock_hz=1e15))
    expected_ms = count * 128 * 4 / (roofline.BANDWIDTH_SHARE * A100.memory_bytes_per_s) * 1e3
    assert float(found.phases_ms[..., 0]) == pytest.approx(expected_ms, rel=0.02)


def test_a_wide_table_idles_lanes_of_the_narrow_ones_beside_it():
    # So many lookups of cached rows that instruction issue decides.
    narrow, wide = (costs(tables_of([8] * 9 + [last], pooling=200.0, rows=100)) for last in (8, 128))
    assert float(wide.phases_ms[..., 0]) > 2 * float(narrow.phases_ms[..., 0])


def test_reuse_is_cheaper_where_the_hot_rows_fit_the_cache():
    tables = tables_of([64] * 2, rows=10**6, pooling=50.0)
    large = replace(RTX2080TI, l2_bytes=10 * RTX2080TI.l2_bytes)
    assert costs(tables, spec=large).phases_ms[..., 0] < costs(tables, spec=RTX2080TI).phases_ms[..., 0]


def test_sorting_takes_a_pass_per_8_bits_of_rows():
    few, many = (costs(tables_of([16], rows=rows)) for rows in (2**16, 2**16 + 1))
    assert many.phases_ms[..., 3] > few.phases_ms[..., 3]
    assert many.phases_ms[..., 0] == few.phases_ms[..., 0]


def table(rows: int, pooling: float, dim: int = 128, batch_size: int = LARGE_BATCH) -> Tables:
    unique = min(rows, int(pooling * batch_size))
    return helper_tables([rows], dim, pooling, batch_size=batch_size, unique_rows=[unique])


def loads_of(tables: Tables, batch_size: int = LARGE_BATCH, precision="fp32", optimizer="sgd"):
    return table_loads(tables, batch_size, precision, optimizer)[0].numpy()


def test_a_tiny_table_is_updated_as_fast_as_lookups_are_sorted():
    few, twice, many = loads_of(table(3, 10.0)), loads_of(table(3, 20.0)), loads_of(table(10**6, 10.0))
    assert backward_s(FIGURES, few) < min(0.5e-3, backward_s(FIGURES, many))  # alone it once took 94.9 ms
    assert update_kernels_s(FIGURES, few) > 0.1 * update_kernels_s(FIGURES, many)
    assert update_kernels_s(FIGURES, twice) == pytest.approx(2 * update_kernels_s(FIGURES, few), rel=0.05)


def test_a_batch_of_a_tenth_of_the_warps_gets_a_part_of_a_device():
    small = V100.num_sms * V100.warps_per_sm // 10
    few, many = (
        forward_kernel_s(figures_of(V100, batch), loads_of(table(10**6, 8.0, batch_size=batch), batch))
        for batch in (small, 20 * small)
    )
    assert 2 < 20 * few / many < 5


@pytest.mark.parametrize(("rows", "pooling"), [(3, 1.0), (1000, 50.0), (10**7, 1.0), (10**7, 100.0)])
def test_half_precision_moves_fewer_bytes_and_state_more(rows, pooling):
    full, half = (loads_of(table(rows, pooling), precision=precision) for precision in ("fp32", "fp16"))
    adagrad = loads_of(table(rows, pooling), optimizer="rowwise_adagrad")
    assert forward_kernel_s(FIGURES, half) < forward_kernel_s(FIGURES, full)
    assert update_kernels_s(FIGURES, half) < update_kernels_s(FIGURES, full) < update_kernels_s(FIGURES, adagrad)
    assert sort_kernels_s(FIGURES, half) == sort_kernels_s(FIGURES, full)


def test_public_kernel_times_are_predicted_within_a_tenth():
    for (gpu, kind), times in kernel_times().items():
        logs = np.log([predicted / measured for predicted, measured in times])
        assert 0.9 <= np.exp(np.median(logs)) <= 1.1 or len(logs) < 4, (gpu, kind)
        assert np.exp(logs.std()) <= 1.25 or kind == "small calls", (gpu, kind)


def test_rows_read_more_than_32_times_take_blocks_of_at_most_1024_reads():
    for rows, blocks in ((10**5, 0), (5000, 5000), (320, 640)):  # 6.6, 131 and 2,048 lookups of each row
        assert loads_of(table(rows, 10.0))[at.BLOCKS] == pytest.approx(blocks)
