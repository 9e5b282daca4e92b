"""What the networks see of a table, and what precision, optimizer and batch size change."""

from dataclasses import replace

import pytest
import torch

from dreamshard.cost_model import Normaliser
from dreamshard.cost_model.features import (
    BACKWARD,
    BACKWARD_LOOKUP_BYTES,
    BATCH,
    DISTINCT_ROWS,
    FEATURES,
    FORWARD,
    FORWARD_LOOKUP_BYTES,
    features,
    work_ratios,
)
from dreamshard.costs import MeasuredOn
from dreamshard.placement import Placement
from tests.helpers.tables import pool_of, roomy_task, tables_of
from tests.helpers.trained import learnt, make_placer

FP32 = MeasuredOn(precision="fp32", optimizer="sgd", batch_size=1000, testbed="", hardware="", num_devices=1)


def test_the_first_features_are_the_papers_21():
    seen = features(tables_of([100], dim=8, pooling=3.0))[0]
    assert seen[:21].tolist() == [8, 100, 3, 800, 0, 1, *[0] * 15]
    assert seen.shape == (len(FEATURES),)


def test_a_table_looks_the_same_in_every_task():
    pool = pool_of(40)
    normaliser = Normaliser.fit(pool)
    assert torch.equal(normaliser(pool.select([7, 3]))[1], normaliser(pool)[3])
    seen = normaliser(pool).double()
    varied = seen.abs().sum(0) > 1e-3
    assert torch.allclose(seen.mean(0), torch.zeros(len(FEATURES), dtype=torch.float64), atol=1e-4)
    assert torch.allclose(seen[:, varied].std(0, correction=0), torch.ones(1, dtype=torch.float64), atol=1e-3)


def test_a_table_without_lookups_keeps_features_finite():
    pool = tables_of([10, 10], pooling=[0.0, 0.0])
    assert Normaliser.fit(pool)(pool).isfinite().all()
    other = FP32.model_copy(update={"precision": "fp16", "batch_size": 7})
    assert work_ratios(pool, FP32, other).isfinite().all()


def test_half_precision_halves_only_the_bytes_of_rows():
    tables = tables_of([10**6], 64, 10.0, batch_size=1000, unique_rows=[8000])
    [ratios] = work_ratios(tables, FP32, FP32.model_copy(update={"precision": "fp16"}))
    rows, outputs, lookups = 10 * 64 * 4, 64 * 4, 10 * FORWARD_LOOKUP_BYTES  # bytes per sample
    assert float(ratios[FORWARD]) == pytest.approx((rows / 2 + outputs + lookups) / (rows + outputs + lookups))
    gradients, sort, updates = 10 * 64 * 4, 10 * BACKWARD_LOOKUP_BYTES, 2 * 8 * 64 * 4
    expected = (gradients + sort + updates / 2) / (gradients + sort + updates)
    assert float(ratios[BACKWARD]) == pytest.approx(expected, rel=0.01)
    assert float(ratios[DISTINCT_ROWS]) == pytest.approx(0.5)
    assert float(ratios[BATCH]) == 1


def test_half_a_batch_is_half_the_work_and_more_state_per_row():
    ratios = work_ratios(pool_of(9), FP32, FP32.model_copy(update={"batch_size": 500}))
    assert torch.allclose(ratios[:, [FORWARD, BATCH]], torch.tensor(0.5))
    assert (ratios[:, BACKWARD] >= 0.5 - 1e-6).all()  # distinct rows are at most all rows
    assert (ratios[:, BACKWARD] < 0.75).all()
    ratios = work_ratios(pool_of(9), FP32, FP32.model_copy(update={"optimizer": "rowwise_adagrad"}))
    assert (ratios[:, BACKWARD] > 1).all()
    assert (ratios[:, [FORWARD, DISTINCT_ROWS, BATCH]] == 1).all()


def test_half_precision_and_half_the_batch_cost_less():
    placer, task = make_placer(learnt()), roomy_task(pool_of(12, 3))
    placement = Placement.whole(torch.arange(12) % 2, 2)
    measured = placer.cost_network.measured_on
    own = float(placer.predict(task, placement).overall_ms())
    assert own == float(placer.predict(replace(task, batch_size=measured.batch_size), placement).overall_ms())
    fp16 = placer.predict(replace(task, precision="fp16"), placement)
    half = placer.predict(replace(task, batch_size=measured.batch_size // 2), placement)
    assert 0.4 * own < float(fp16.overall_ms()) < own
    assert 0.4 * own < float(half.overall_ms()) < 0.7 * own
    assert torch.equal(fp16.phases_ms[..., 1], placer.predict(task, placement).phases_ms[..., 1])  # vectors stay fp32
    assert (half.phases_ms[..., 1] < fp16.phases_ms[..., 1]).all()
