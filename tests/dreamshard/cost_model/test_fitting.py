"""Fitting a cost network to measured placements."""

import pytest
import torch

from dreamshard.cost_model import CostData, Normaliser, PaperCostNetwork, TrainingDivergedError, prediction_error
from dreamshard.placement import Placement
from dreamshard.search.baselines import RandomPlacer
from dreamshard.task_sets.sampling import sample_tasks, split_tables
from dreamshard.training import TrainingConfig
from tests.helpers.samples import sample_of
from tests.helpers.tables import pool_of, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import fit_costs, start_training

POOL = pool_of(80)
TRAIN, TEST = split_tables(POOL, torch.Generator().manual_seed(0))


def measured(pool, num_tasks, placements_each, seed):
    tasks = sample_tasks(pool, num_tasks, 16, 4, 2**33, torch.Generator().manual_seed(seed))
    return [
        simulated().measure(task, RandomPlacer(draw).place(task)) for task in tasks for draw in range(placements_each)
    ]


def two_samples(task):
    return [sample_of(task, Placement.whole(torch.tensor(device), 2), [3.0, 1.0]) for device in ([0, 0, 1], [0, 1, 1])]


def test_the_assignment_says_where_each_table_is():
    data = CostData.of(two_samples(task_of([1, 2, 3], 2, 10)), Normaliser.fit(POOL))
    assert data.assignment.tolist() == [[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]]
    assert data.overall_ms.tolist() == [3.0, 3.0]


def test_a_table_that_changed_between_two_samples_is_two_tables():
    one, other = task_of([10, 20], 2, 1000), task_of([10, 40], 2, 1000)
    assert one.tables.names == other.tables.names
    placement = Placement.whole(torch.tensor([0, 1]), 2)
    normaliser = Normaliser.fit(POOL)
    data = CostData.of([sample_of(task, placement, [1.0, 2.0]) for task in (one, other)], normaliser)
    assert data.assignment.tolist() == [[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]]]
    assert torch.equal(data.features[:2], normaliser(one.tables))
    assert torch.equal(data.features[2], normaliser(other.tables)[1])


def mixed_samples():
    one = sample_of(task_of([1], 1, 10), Placement.whole(torch.tensor([0]), 1), [1.0])
    return [*two_samples(task_of([1, 2, 3], 2, 10)), one]


def test_the_papers_network_takes_samples_of_one_number_of_devices():
    data = CostData.of(mixed_samples(), Normaliser.fit(POOL))
    with pytest.raises(ValueError, match=r"several layouts .*\(1, None\), \(2, None\).*train the algorithm dreamshard"):
        PaperCostNetwork().prepare(data, first=True)
    with pytest.raises(ValueError, match="pass at least one"):
        CostData.of([], Normaliser.fit(POOL))


@pytest.mark.slow
def test_samples_of_different_numbers_of_devices_fit_together():
    counts = (2, 4, 16)
    tasks = [
        task
        for count in counts
        for task in sample_tasks(TRAIN, 30, 16, count, 2**33, torch.Generator().manual_seed(count))
    ]
    held_out = [
        task
        for count in counts
        for task in sample_tasks(TEST, 3, 16, count, 2**33, torch.Generator().manual_seed(9 + count))
    ]
    samples, unseen = (
        [simulated().measure(task, RandomPlacer(draw).place(task)) for draw, task in enumerate(part)]
        for part in (tasks, held_out)
    )
    state = start_training(TRAIN, TrainingConfig(cost_steps=400), seed=0)
    fit_costs(state, samples)
    assert prediction_error(state.cost_network, CostData.of(unseen, state.normaliser)).mape < 0.06


@pytest.mark.slow
def test_a_hundred_placements_are_enough_to_predict_tables_never_seen():
    state = start_training(TRAIN, TrainingConfig(cost_steps=400), seed=0)
    before = measured(TEST, 4, 8, seed=2)
    fit_costs(state, measured(TRAIN, 100, 1, seed=1))
    error = prediction_error(state.cost_network, CostData.of(before, state.normaliser))
    assert error.mape < 0.06
    assert error.spearman > 0.9


def test_a_loss_that_is_no_number_ends_training():
    state = start_training(TRAIN, TrainingConfig(cost_steps=2), seed=0)
    data = CostData.of(measured(TRAIN, 2, 1, seed=1), state.normaliser)
    next(iter(state.cost_network.parameters())).data.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError, match="last checkpoint is intact"):
        state.cost_network.fit(data, state.cost_optimizer, steps=2, batch=2, generator=state.generator, first=False)


def test_ranks_are_compared_within_a_task():
    class FixedPrediction(PaperCostNetwork):
        def encode(self, features, ratios=None):
            return features

        def overall_ms(self, sums):
            return torch.tensor([1.0, 2.0, 3.0, 30.0, 20.0, 10.0])

    phases = torch.zeros(6, 1, 4)
    phases[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    data = CostData(torch.ones(1, 1), torch.ones(6, 1, 1), phases, ("a", "a", "a", "b", "b", "b"))
    error = prediction_error(FixedPrediction(), data)
    assert error.spearman == pytest.approx(0.0)  # 1 within a, -1 within b
    assert error.mape == pytest.approx((2.0 + 0 + 2 / 3) / 6)
