"""Precision, optimizer and batch size in the prediction."""

from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional

from dreamshard.cost_model import CostData, Normaliser, StructuredCostNetwork
from dreamshard.cost_model.features import (
    BACKWARD,
    BACKWARD_LOOKUP_BYTES,
    BATCH,
    DISTINCT_ROWS,
    FORWARD,
    FORWARD_LOOKUP_BYTES,
    work_ratios,
)
from dreamshard.cost_model.structured import DIMS, FitData
from dreamshard.measured_on import MeasuredOn, StepSetting
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, roomy_task, tables_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import learnt, make_placer

FP32 = StepSetting(precision="fp32", optimizer="sgd", batch_size=1000)


def test_half_precision_halves_the_bytes_of_rows_and_nothing_else():
    tables = tables_of([10**6], 64, 10.0, batch_size=1000, unique_rows=[8000])
    [ratios] = work_ratios(tables, FP32, replace(FP32, precision="fp16"))
    rows, outputs, lookups = 10 * 64 * 4, 64 * 4, 10 * FORWARD_LOOKUP_BYTES  # bytes per sample
    assert float(ratios[FORWARD]) == pytest.approx((rows / 2 + outputs + lookups) / (rows + outputs + lookups))
    gradients, sort, updates = 10 * 64 * 4, 10 * BACKWARD_LOOKUP_BYTES, 2 * 8 * 64 * 4
    expected = (gradients + sort + updates / 2) / (gradients + sort + updates)
    assert float(ratios[BACKWARD]) == pytest.approx(expected, rel=0.01)
    assert float(ratios[DISTINCT_ROWS]) == pytest.approx(0.5)
    assert float(ratios[BATCH]) == 1


def test_a_batch_of_half_the_samples_is_half_the_work():
    ratios = work_ratios(pool_of(9), FP32, replace(FP32, batch_size=500))
    assert torch.allclose(ratios[:, [FORWARD, BATCH]], torch.tensor(0.5))
    assert (ratios[:, BACKWARD] >= 0.5 - 1e-6).all()  # distinct rows are at most all rows
    assert (ratios[:, BACKWARD] < 0.75).all()


def test_state_per_row_is_more_work_in_the_backward_pass_alone():
    ratios = work_ratios(pool_of(9), FP32, replace(FP32, optimizer="rowwise_adagrad"))
    assert (ratios[:, BACKWARD] > 1).all()
    assert (ratios[:, [FORWARD, DISTINCT_ROWS, BATCH]] == 1).all()


def test_a_table_without_lookups_has_finite_ratios():
    ratios = work_ratios(tables_of([10], 4, 0.0), FP32, replace(FP32, precision="fp16", batch_size=7))
    assert ratios.isfinite().all()


def test_a_placer_predicts_less_for_half_precision_and_for_half_the_batch():
    placer, task = make_placer(learnt()), roomy_task(pool_of(12, 3))
    placement = Placement.whole(torch.arange(12) % 2, 2)
    measured = placer.cost_network.measured_on
    own = float(placer.predict(task, placement).overall_ms())
    assert own == float(placer.predict(replace(task, batch_size=measured.setting.batch_size), placement).overall_ms())
    fp16 = placer.predict(replace(task, precision="fp16"), placement)
    half = placer.predict(replace(task, batch_size=measured.setting.batch_size // 2), placement)
    assert 0.4 * own < float(fp16.overall_ms()) < own
    assert 0.4 * own < float(half.overall_ms()) < 0.7 * own
    assert torch.equal(fp16.forward_comm_ms, placer.predict(task, placement).forward_comm_ms)  # vectors stay fp32
    assert (half.forward_comm_ms < fp16.forward_comm_ms).all()


def test_a_network_that_does_not_know_its_setting_predicts_the_same_for_all():
    network, tables = StructuredCostNetwork(Normaliser.fit(pool_of(9))), pool_of(9)
    assert network.measured_on is None
    assert network.ratios(PlacementTask(tables, 2, 2**40, precision="fp16")) is None


def test_samples_of_two_settings_fit_together():
    tables, placement = pool_of(8), Placement.whole(torch.arange(8) % 2, 2)
    fp32, fp16 = roomy_task(tables), replace(roomy_task(tables), precision="fp16")
    samples = [simulated(0.0).measure(task, placement) for task in (fp32, fp16)]
    samples.append(simulated(0.0, batch_size=2048).measure(fp32, placement))
    setting = MeasuredOn.of(samples[0]).setting
    assert CostData.of(samples[:1], Normaliser.fit(tables), setting).ratios is None
    data = CostData.of(samples, Normaliser.fit(tables), setting)
    narrow = int((tables.dim <= 8).sum())  # a row is one sector in either precision
    assert len(data.ratios) == 3 * 8 - narrow  # otherwise a table in another setting is another table
    assert (data.ratios[:8] == 1).all()
    assert torch.allclose(data.ratios[-8:, BATCH], torch.tensor(2048 / setting.batch_size))


def test_the_loss_is_huber_s_of_the_predictions_and_has_the_gradient_that_it_returns():
    tables, placement = pool_of(8), Placement.whole(torch.arange(8) % 2, 2)
    tasks = [roomy_task(tables), replace(roomy_task(tables), precision="fp16")]
    data = CostData.of([simulated(0.0).measure(task, placement) for task in tasks], Normaliser.fit(tables), FP32)
    torch.manual_seed(0)
    network = StructuredCostNetwork(Normaliser.fit(tables), members=1)
    sums = data.sums(network.encode)
    network.exchanges.learn_placements(data, sums[..., DIMS])
    network.calibrate(sums, data.phases_ms)
    network.output_weight.data.normal_()
    fitted = network.fit_data(data, data.sums(network.encode))
    loss, _ = network.loss_and_gradient(fitted)

    measured = data.phases_ms
    device_ms = measured.sum(-1)
    scale = torch.maximum(device_ms, 0.2 * device_ms.amax(dim=1, keepdim=True))
    error = (network.phases_ms(data.sums(network.encode)) - measured) / scale[..., None]
    terms = error[..., [0, 3]], error.sum(-1)
    phases, whole = (functional.smooth_l1_loss(each, torch.zeros_like(each), beta=0.05) for each in terms)
    assert loss == pytest.approx(10 * float(phases / 2 + whole), rel=1e-4)

    network.double()
    fitted = FitData(*(getattr(fitted, field.name).double() for field in fields(fitted)))
    _, gradient = network.loss_and_gradient(fitted)
    for parameter, slope in zip(network.parameters(), gradient, strict=True):
        at, values = parameter.data.flatten(), slope.flatten()
        for i in {0, len(at) // 2, int(values.abs().argmax())}:
            before, sides = float(at[i]), []
            for step in (-1e-6, 1e-6):
                at[i] = before + step
                sides.append(network.loss_and_gradient(fitted)[0])
            at[i] = before
            assert float(values[i]) == pytest.approx((sides[1] - sides[0]) / 2e-6, rel=1e-3, abs=1e-7)
