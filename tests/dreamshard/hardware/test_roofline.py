"""The simulated testbed's model: limits that can be checked by hand, and each non-additive effect."""

from dataclasses import replace

import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.loads import AGAIN_BYTES, HOT_BYTES, READ_BYTES, shard_loads, table_loads
from dreamshard.hardware.roofline import (
    BACKWARD_KERNELS,
    BANDWIDTH_SHARE,
    FORWARD_KERNELS,
    HOST_BACKWARD_LAUNCHES,
    HOST_FORWARD_LAUNCHES,
    phase_costs,
)
from dreamshard.tables import Tables
from tests.helpers.tables import tables_of_dims

A100 = PRESETS["a100"]
RTX2080TI = PRESETS["rtx2080ti"]

BATCH = 4096


def costs(
    tables: Tables, device: list[int], num_devices: int, spec=A100, precision="fp32", optimizer="sgd"
) -> DeviceCosts:
    loads = table_loads(tables, BATCH, precision, optimizer)
    return phase_costs(shard_loads(loads, torch.tensor([device]), num_devices), BATCH, spec)


def tables_of(dims: list[int], **options) -> Tables:
    return tables_of_dims(dims, batch_size=BATCH, **options)


def alone_ms(dim: int, spec=A100, **options) -> float:
    return float(costs(tables_of([dim], **options), [0], 1, spec).device_ms()[0, 0])


def test_an_empty_device_computes_for_no_time_but_waits_for_the_exchange():
    found = costs(tables_of([16, 16]), [0, 0], 2)
    assert found.forward_compute_ms[0, 1] == 0
    assert found.backward_compute_ms[0, 1] == 0
    assert found.forward_comm_ms[0, 1] == found.forward_comm_ms[0, 0] > 0


@pytest.mark.parametrize("spec", PRESETS.values(), ids=PRESETS.keys())
def test_fusing_two_tables_costs_less_than_both_alone(spec):
    fused = float(costs(tables_of([32, 32]), [0, 0], 1, spec).device_ms()[0, 0])
    assert fused < 2 * alone_ms(32, spec)
    assert fused > alone_ms(32, spec)


def test_a_shard_with_hardly_any_work_costs_what_the_host_needs_to_launch_it():
    found = costs(tables_of([4], pooling=0.0, rows=2), [0], 1)
    host_ms = (HOST_FORWARD_LAUNCHES + HOST_BACKWARD_LAUNCHES) * A100.launch_s * 1e3
    kernels_ms = (FORWARD_KERNELS + BACKWARD_KERNELS + 1) * A100.launch_s * 1e3
    assert host_ms < float(found.device_ms()[0, 0]) < host_ms + 0.1 * kernels_ms


def test_a_huge_table_without_reuse_is_read_at_the_achievable_memory_bandwidth():
    count = 4096 * 4096
    tables = tables_of([128], rows=2**40, pooling=4096.0)
    tables = replace(tables, unique_rows=torch.tensor([count]), bins=torch.eye(17)[:1])
    huge_batch = 4096
    loads = table_loads(tables, huge_batch, "fp32", "sgd")
    found = phase_costs(loads, huge_batch, replace(A100, num_sms=1, warps_per_sm=1, clock_hz=1e15))
    row_bytes = count * 128 * 4
    expected_ms = row_bytes / (BANDWIDTH_SHARE * A100.memory_bytes_per_s) * 1e3
    assert float(found.forward_compute_ms[0]) == pytest.approx(expected_ms, rel=0.02)


def test_narrow_rows_cost_a_whole_sector_each():
    loads = table_loads(tables_of([4, 8, 16]), BATCH, "fp32", "sgd")
    assert loads[0, READ_BYTES] == loads[1, READ_BYTES] == 2 * BATCH * 32
    assert loads[2, READ_BYTES] == 2 * BATCH * 64


def test_a_wide_table_idles_lanes_of_the_narrow_ones_beside_it():
    # So many lookups of cached rows that instruction issue decides.
    options = {"pooling": 200.0, "rows": 100}
    narrow, wide = tables_of([8] * 10, **options), tables_of([8] * 9 + [128], **options)
    narrow_ms = costs(narrow, [0] * 10, 1).forward_compute_ms.item()
    wide_ms = costs(wide, [0] * 10, 1).forward_compute_ms.item()
    assert wide_ms > 2 * narrow_ms


def test_reuse_is_cheaper_where_the_hot_rows_fit_the_cache():
    options = {"rows": 10**6, "pooling": 50.0}
    tables = tables_of([64] * 2, **options)
    large = replace(RTX2080TI, l2_bytes=10 * RTX2080TI.l2_bytes)
    small_cache = costs(tables, [0, 0], 1, RTX2080TI).forward_compute_ms.item()
    large_cache = costs(tables, [0, 0], 1, large).forward_compute_ms.item()
    assert large_cache < small_cache


def test_tables_of_a_shard_share_the_cache():
    # Each table's rows fill the cache; together they miss, so reads per table cost more than alone.
    spec = replace(A100, launch_s=1e-12, l2_bytes=50 * BATCH // 2 * 256, warps_per_sm=1, num_sms=1, clock_hz=1e15)
    tables = tables_of([64] * 2, rows=10**6, pooling=50.0)
    alone = costs(tables.select([0]), [0], 1, spec).forward_compute_ms.item()
    together = costs(tables, [0, 0], 1, spec).forward_compute_ms.item()
    assert together > 2.1 * alone


def test_sorting_takes_another_pass_when_the_shards_rows_need_another_8_bits():
    few, many = tables_of([16], rows=2**16), tables_of([16], rows=2**16 + 1)
    few_ms, many_ms = costs(few, [0], 1), costs(many, [0], 1)
    assert many_ms.backward_compute_ms.item() > few_ms.backward_compute_ms.item()
    assert many_ms.forward_compute_ms.item() == few_ms.forward_compute_ms.item()


def test_reads_of_all_bins_add_up_to_the_lookups():
    generator = torch.Generator().manual_seed(0)
    bins = torch.rand(3, 17, generator=generator)
    tables = replace(tables_of([8, 8, 8]), bins=bins / bins.sum(dim=1, keepdim=True))
    loads = table_loads(tables, BATCH, "fp32", "sgd")
    torch.testing.assert_close(loads[:, HOT_BYTES:].sum(dim=1), torch.full((3,), 2.0 * BATCH * 32, dtype=torch.float64))
    assert AGAIN_BYTES - HOT_BYTES == 17


def test_moving_a_table_by_its_row_of_loads_gives_the_cost_of_the_new_placement():
    tables = tables_of([4, 32, 64, 128, 16])
    loads = table_loads(tables, BATCH, "fp32", "sgd")
    sums = torch.stack([loads[:3].sum(dim=0), loads[3:].sum(dim=0)])  # [D, K]
    sums[0] -= loads[1]
    sums[1] += loads[1]
    moved = costs(tables, [0, 1, 0, 1, 1], 2).phases_ms()[0]
    torch.testing.assert_close(phase_costs(sums, BATCH, A100).phases_ms(), moved)
