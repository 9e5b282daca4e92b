"""Times of single kernels: what long segments, few warps and precision change."""

import numpy as np
import pytest

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.loads import table_loads
from dreamshard.hardware.roofline import backward_s, figures_of, forward_kernel_s, sort_kernels_s, update_kernels_s
from dreamshard.tables import Tables
from tests.benchmarks.bench_presets import kernel_ratios
from tests.helpers.tables import tables_of

A100 = PRESETS["a100"]
V100 = PRESETS["v100"]

BATCH = 65_536
FIGURES = figures_of(A100, BATCH)


def table(rows: int, pooling: float, dim: int = 128, batch_size: int = BATCH) -> Tables:
    lookups = int(pooling * batch_size)
    return tables_of([rows], dim, pooling, batch_size=batch_size, unique_rows=[min(rows, lookups)])


def loads_of(tables: Tables, batch_size: int = BATCH, precision="fp32", optimizer="sgd"):
    return table_loads(tables, batch_size, precision, optimizer).sum(dim=0).numpy()


def test_a_table_of_three_rows_is_updated_about_as_fast_as_its_lookups_can_be_sorted_and_summed():
    few, many = loads_of(table(3, 10.0)), loads_of(table(10**6, 10.0))
    assert backward_s(FIGURES, few) < 0.5e-3  # alone it once took 94.9 ms
    assert backward_s(FIGURES, few) < backward_s(FIGURES, many)
    assert update_kernels_s(FIGURES, few) > 0.1 * update_kernels_s(FIGURES, many)


def test_the_update_spreads_over_lookups_where_there_are_few_rows():
    spread = update_kernels_s(FIGURES, loads_of(table(3, 10.0)))
    twice = update_kernels_s(FIGURES, loads_of(table(3, 20.0)))
    assert float(twice / spread) == pytest.approx(2, rel=0.05)


def test_a_batch_of_a_tenth_of_the_resident_warps_gets_a_part_of_the_device():
    small = V100.resident_warps // 10
    few = forward_kernel_s(figures_of(V100, small), loads_of(table(10**6, 8.0, batch_size=small), small))
    many = forward_kernel_s(
        figures_of(V100, 20 * small), loads_of(table(10**6, 8.0, batch_size=20 * small), 20 * small)
    )
    assert 2 < float(20 * few / many) < 5


def test_rows_of_32_columns_take_a_quarter_of_the_steps_of_128():
    times = [forward_kernel_s(FIGURES, loads_of(table(1000, 50.0, dim))) for dim in (4, 32, 64, 128)]
    assert times[0] > 0.6 * times[1]  # both need a group of 8 threads
    assert float(times[3] / times[1]) == pytest.approx(4, rel=0.05)
    assert float(times[3] / times[2]) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("rows", "pooling"), [(3, 1.0), (1000, 50.0), (10**7, 1.0), (10**7, 100.0)])
def test_half_precision_is_never_slower_and_moves_fewer_bytes_forward_and_backward(rows, pooling):
    full, half = (loads_of(table(rows, pooling), precision=precision) for precision in ("fp32", "fp16"))
    assert forward_kernel_s(FIGURES, half) < forward_kernel_s(FIGURES, full)
    assert update_kernels_s(FIGURES, half) < update_kernels_s(FIGURES, full)
    assert sort_kernels_s(FIGURES, half) == sort_kernels_s(FIGURES, full)


def test_the_optimizers_state_is_read_and_written():
    sgd, adagrad = (loads_of(table(10**7, 10.0), optimizer=name) for name in ("sgd", "rowwise_adagrad"))
    assert update_kernels_s(FIGURES, adagrad) > 1.02 * update_kernels_s(FIGURES, sgd)


def test_public_kernel_times_are_predicted_within_a_tenth():
    ratios = kernel_ratios()
    for gpu in ("h100", "v100", "unknown (Meta, 2024)"):
        logs = np.log(ratios[gpu, "kernels"])
        assert 0.9 <= np.exp(logs.mean()) <= 1.1
        assert np.exp(logs.std()) <= 1.25
