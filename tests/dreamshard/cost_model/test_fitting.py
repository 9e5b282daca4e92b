"""Fitting a cost network to measured placements."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from dreamshard.cost_model import CostData, Normaliser, StructuredCostNetwork, TrainingDivergedError, prediction_error
from dreamshard.cost_model.compiled import DIMS
from dreamshard.costs import DeviceCosts
from dreamshard.search.packing import RandomPlacer
from dreamshard.tables import Placement
from dreamshard.training import TrainingConfig
from dreamshard.workloads.task_sampling import split_tables
from tests.helpers.samples import sample_of, sample_of_phases
from tests.helpers.tables import pool_of, roomy_task, sample_tasks, tables_of, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import fit_costs, start_training

POOL = pool_of(80)
TRAIN, TEST = split_tables(POOL, torch.Generator().manual_seed(0))
NORMALISER = Normaliser.fit(POOL)


def measured(pool, num_tasks, num_devices=4, draws=1, seed=0, noise=0.01):
    tasks = sample_tasks(pool, num_tasks, 16, num_devices, 2**33, torch.Generator().manual_seed(seed))
    return [simulated(noise).measure(task, RandomPlacer(draw).place(task)) for task in tasks for draw in range(draws)]


def test_a_table_that_changed_between_two_samples_is_two_tables():
    one, other = task_of([10, 20], 2, 1000), task_of([10, 40], 2, 1000)
    samples = [sample_of(task, Placement.whole([0, 1], 2), [1.0, 2.0]) for task in (one, other)]
    data = CostData.of(samples, NORMALISER)
    rows = torch.cat([NORMALISER(one.tables), NORMALISER(other.tables)])  # a, b, a again, b as it is now
    where = [[(row == feature).all() for feature in data.features].index(True) for row in rows]
    assert (len(data.features), where[0]) == (3, where[2])
    expected = torch.zeros(2, 2, 3)
    expected[0, 0, where[0]] = expected[0, 1, where[1]] = expected[1, 0, where[2]] = expected[1, 1, where[3]] = 1
    assert torch.equal(data.assignment, expected)
    several = replace(one, tables=replace(one.tables, poolings=torch.tensor([1.0, 3.0])))
    both = CostData.of([samples[0], replace(samples[0], task=several)], NORMALISER)
    sums = both.sums(StructuredCostNetwork(NORMALISER).encode)
    torch.testing.assert_close(sums[1, :, DIMS], sums[0, :, DIMS] * torch.tensor([1, 3]))


def fitted(samples):
    state = start_training(TRAIN, TrainingConfig(), seed=0)
    fit_costs(state, samples)
    return state.cost_network


@pytest.fixture(scope="module")
def network():
    """Fitted to eighty placements; tests copy it before they change it."""
    return fitted(measured(TRAIN, 80))


@pytest.fixture(scope="module")
def unseen():
    return CostData.of(measured(TEST, 20, seed=9), Normaliser.fit(TRAIN))


def test_eighty_placements_predict_tables_never_seen(network, unseen):
    assert 0.9 < network.phases_ms(unseen.sums(network.encode))[..., 0].sum() / unseen.phases_ms[..., 0].sum() < 1.1
    assert 0.001 < network.relative_error < 2 * prediction_error(network, unseen) < 0.12


def test_a_cost_that_jumps_with_the_size_of_a_table_is_learned():
    generator = torch.Generator().manual_seed(0)
    rows = (10 ** (3 + 5 * torch.rand(120, generator=generator))).long()
    tables = tables_of(rows.tolist(), 16, (1 + 20 * torch.rand(120, generator=generator)).tolist())
    lookup_ms = torch.where(rows > 10**6, 0.3, 0.1)

    def sample(tables, device, noise):
        work = tables.pooling_factor * lookup_ms[[int(name[1:]) for name in tables.names]]
        sums = 0.1 + torch.zeros(4).double().index_add_(0, device, work)
        phases = torch.stack([sums, 0 * sums, 0 * sums, sums], dim=1) * (1 + noise * torch.randn(4, 4))
        return sample_of_phases(roomy_task(tables, 4), Placement.whole(device, 4), phases)

    drawn = [torch.randperm(80, generator=generator)[:24] for _ in range(80)]
    samples = [sample(tables.select(index), torch.randint(4, (24,), generator=generator), 0.01) for index in drawn]
    state = start_training(tables.select(torch.arange(80)), TrainingConfig(), seed=0)
    fit_costs(state, samples)
    far = [t for t in range(80, 120) if abs(float(rows[t].log10()) - 6) > 0.4]
    alone = [sample(tables.select(torch.tensor([t])), torch.tensor([0]), 0.0) for t in far]
    errors = [prediction_error(state.cost_network, CostData.of([one], state.normaliser)) for one in alone]
    assert max(errors) < 0.15  # 0.44 with smooth steps


def test_rows_hotter_than_any_that_was_fitted_are_not_dear(network):
    """Such a table cost three hours in a home whose training tables had no row of more than 1,024 lookups."""
    warm, hot = (tables_of([24], 4, 8.0, bins=[[0.0] * above + [1.0]], unique_rows=[24]) for above in (3, 16))
    assert float(TRAIN.bins[:, 16].sum()) == 0
    alone = [sample_of(roomy_task(tables), Placement.whole([0], 2), [1, 0]) for tables in (warm, hot)]
    warm_ms, hot_ms = (network.predicted(CostData.of([sample], NORMALISER))[0] for sample in alone)
    assert hot_ms < 10 * warm_ms


def test_the_fit_estimates_the_noise(network):
    assert (fitted(measured(TRAIN, 20, noise=0.3)).noise > network.noise + 1).all()


def test_bursts_in_an_eighth_of_the_measurements_hardly_move_the_predictions(network, unseen):
    samples = measured(TRAIN, 80)
    for k in range(0, 80, 8):
        samples[k] = replace(samples[k], costs=DeviceCosts(1.4 * samples[k].costs.phases_ms))
    ratios = fitted(samples).predicted(unseen)[0] / network.predicted(unseen)[0]
    assert ratios.mean().item() == pytest.approx(1, abs=0.03)  # the mean of all is 5 % higher


def test_the_spread_is_what_devices_do_not_share_on_placements_that_were_not_fitted_to(network, unseen):
    unseen_spread, network = network.relative_error_of(unseen), deepcopy(network)
    slower = replace(unseen, phases_ms=unseen.phases_ms * 1.2)  # all devices alike
    assert network.relative_error_of(slower) == pytest.approx(float(unseen_spread), rel=0.25)
    noisy = replace(unseen, phases_ms=unseen.phases_ms * (1 + 0.2 * torch.randn(len(unseen.phases_ms), 4, 1)))
    assert 0.1 < network.relative_error_of(noisy) < 0.3
    before = network.relative_error.clone()
    network.learn_relative_error(noisy)
    assert network.relative_error > 2 * before


def test_a_loss_that_is_no_number_ends_training():
    state = start_training(TRAIN, TrainingConfig(), seed=0)
    next(iter(state.cost_network.parameters())).data.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError):
        fit_costs(state, measured(TRAIN, 2))
