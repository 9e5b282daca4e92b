"""Fitting a cost network to measured placements."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dreamshard.cost_model import (
    CostData,
    Normaliser,
    StructuredCostNetwork,
    TrainingDivergedError,
    prediction_error,
)
from dreamshard.cost_model.structured import DIMS, FitData
from dreamshard.costs import StepSetting
from dreamshard.placement import Placement
from dreamshard.search.baselines import RandomPlacer
from dreamshard.task_sets.sampling import split_tables
from dreamshard.training import TrainingConfig
from tests.helpers.samples import sample_of
from tests.helpers.tables import pool_of, roomy_task, sample_tasks, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import fit_costs, start_training

POOL = pool_of(80)
TRAIN, TEST = split_tables(POOL, torch.Generator().manual_seed(0))
NORMALISER = Normaliser.fit(POOL)


def measured(pool, num_tasks, num_devices=4, each=1, seed=0):
    tasks = sample_tasks(pool, num_tasks, 16, num_devices, 2**33, torch.Generator().manual_seed(seed))
    return [simulated().measure(task, RandomPlacer(draw).place(task)) for task in tasks for draw in range(each)]


def test_a_table_that_changed_between_two_samples_is_two_tables():
    one, other = task_of([10, 20], 2, 1000), task_of([10, 40], 2, 1000)
    samples = [sample_of(task, Placement.whole([0, 1], 2), [1.0, 2.0]) for task in (one, other)]
    data = CostData.of(samples, NORMALISER)
    assert data.assignment.tolist() == [[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]]]
    assert torch.equal(data.features, torch.cat([NORMALISER(one.tables), NORMALISER(other.tables)[1:]]))


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "num_tasks"), [((4,), 100), ((2, 4, 16), 30)])
def test_a_hundred_placements_predict_tables_never_seen(counts, num_tasks):
    state = start_training(TRAIN, TrainingConfig(), seed=0)
    fit_costs(state, [sample for count in counts for sample in measured(TRAIN, num_tasks, count, seed=count)])
    unseen = [sample for count in counts for sample in measured(TEST, 4, count, each=3, seed=9 + count)]
    assert prediction_error(state.cost_network, CostData.of(unseen, state.normaliser)) < 0.06


def test_a_loss_that_is_no_number_ends_training():
    state = start_training(TRAIN, TrainingConfig(), seed=0)
    next(iter(state.cost_network.parameters())).data.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError):
        fit_costs(state, measured(TRAIN, 2))


def fit_of_two_precisions():
    """A network, and what it is fitted to."""
    tables, placement = pool_of(8), Placement.whole(torch.arange(8) % 2, 2)
    tasks = [roomy_task(tables), replace(roomy_task(tables), precision="fp16")]
    setting = StepSetting(precision="fp32", optimizer="sgd", batch_size=1000)
    data = CostData.of([simulated(0.0).measure(task, placement) for task in tasks], Normaliser.fit(tables), setting)
    torch.manual_seed(0)
    network = StructuredCostNetwork(Normaliser.fit(tables))
    network.exchanges.learn_placements(data, data.sums(network.encode)[..., DIMS])
    network.calibrate(data.sums(network.encode), data.phases_ms)
    return network, data


def test_the_loss_is_huber_with_its_own_gradient():
    network, data = fit_of_two_precisions()
    network.output_weight.data.normal_()
    for own in network.parameters():  # members are alike, so that the prediction is each one's
        own.data = own.data[:1].expand_as(own).clone()
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
    fitted = FitData(*(each.double() for each in fitted))
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
