"""Errors of predicted compute times, and what TorchRec's estimator gives a shard."""

import sys

import pytest
import torch

from dreamshard.shard_profiling.dataset import samples_of
from dreamshard.shard_profiling.errors import best_factor, errors_by_tables, measured_ms, torchrec_ms
from dreamshard.testbeds.accelerators.specs import H200
from tests.helpers.shards import simulated_shards


def test_the_best_factor_makes_the_mean_relative_error_least():
    predicted, measured = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([2.0, 3.0, 8.0])
    factor = best_factor(predicted, measured)

    def error(times: float) -> float:
        return float((times * predicted / measured - 1).abs().mean())

    assert error(factor) == pytest.approx(min(error(i / 100) for i in range(1, 1000)), abs=1e-6)
    assert best_factor(predicted, 7 * predicted) == pytest.approx(7.0)


def test_errors_are_means_over_the_shards_of_a_range_and_over_all():
    samples = samples_of(simulated_shards(12))
    errors = errors_by_tables({"mape": 1.5 * measured_ms(samples), "paper_mape": 0.8 * measured_ms(samples)}, samples)
    assert errors[-1].tables == "all"
    assert sum(error.num_shards for error in errors[:-1]) == errors[-1].num_shards == 12
    assert all((e.mape, e.paper_mape) == (pytest.approx(0.5), pytest.approx(0.2)) for e in errors)


def test_torchrecs_estimate_of_a_shard_is_that_of_its_bytes_table_by_table():
    pytest.importorskip("torchrec")
    samples = samples_of(simulated_shards(12))
    given = torchrec_ms(samples, H200.memory_bytes_per_s)
    expected = []
    for sample in samples:
        tables, batch = sample.task.tables, sample.batch_size
        lookups, dim = tables.pooling_factor * batch, tables.dim.double()
        moved = 8 * lookups + 2 * (lookups * dim.clamp(min=32) + lookups.clamp(max=batch) * dim)  # fp16
        penalty = torch.where(dim >= 128, 1.0, torch.where(dim >= 64, 1.15, 1.75))
        expected.append(float((3 * penalty * moved).sum()) / H200.memory_bytes_per_s * 1e3)
    torch.testing.assert_close(given, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_without_torchrec_its_column_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dreamshard.torchrec", None)
    monkeypatch.delattr("dreamshard.torchrec", raising=False)
    samples = samples_of(simulated_shards(12))
    assert torchrec_ms(samples, H200.memory_bytes_per_s) is None
    (*_, error) = errors_by_tables({"mape": measured_ms(samples), "paper_mape": measured_ms(samples)}, samples)
    assert error.row()["of TorchRec's estimator"] == error.row()["of TorchRec's, scaled"] == "torchrec is not installed"
    assert error.row()["error"] == "0.0%"
