"""NeuroShard's own cost models: what they learn from measured placements, and what they refuse."""

import pytest
import torch

from dreamshard.baselines import RandomPlacer
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.peers import FITTED, ON_NETWORK, neuroshard_fitting, peer
from dreamshard.peers.neuroshard import NeuroShardPlacer
from dreamshard.peers.neuroshard_fitting import NeuroShardTraining, fitted_models
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.task_sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import learnt_placer

SHORT = NeuroShardTraining(steps=400)


def measured(count, num_devices=4, dim=None):
    """Random placements of tasks of 12 tables on the simulated testbed without noise."""
    pool = pool_of(24)
    if dim is not None:
        pool.dim.fill_(dim)
    tasks = sample_tasks(pool, 8, 12, num_devices, 2**40, torch.Generator().manual_seed(3))
    testbed, generator, samples = simulated(noise=0.0), torch.Generator().manual_seed(4), []
    for i in range(count):
        device = torch.randint(num_devices, (12,), generator=generator)
        samples.append(testbed.measure(tasks[i % len(tasks)], Placement(device, num_devices)))
    return samples


@pytest.fixture(scope="module")
def samples():
    return measured(60)


@pytest.fixture(scope="module")
def models(samples):
    return fitted_models(samples, 0, SHORT)


def latent_sums(models, sample):
    latents = models.encode(sample.task)
    return torch.zeros(1, sample.task.num_devices, latents.shape[1]).index_add_(
        1, sample.placement.device, latents[None]
    )


def test_placements_that_were_not_fitted_are_predicted(models):
    errors = []
    for sample in measured(80)[60:]:
        predicted = float(models.overall_ms(latent_sums(models, sample)))
        errors.append(abs(predicted - sample.overall_ms) / sample.overall_ms)
    assert sum(errors) / len(errors) < 0.15


def test_its_compute_in_numpy_is_that_of_the_torch_model(models, samples):
    sums = latent_sums(models, samples[0])[0]
    with torch.no_grad():
        expected = models.compute.shard(sums[:, :-1])[:, 0] * models.mean_compute_ms
    assert torch.allclose(torch.from_numpy(models.compute_ms()(sums.numpy())), expected, rtol=1e-4)


def test_the_search_by_its_own_models_beats_random_placements_on_true_costs(models):
    testbed, tasks = simulated(noise=0.0), [PlacementTask(pool_of(16, seed), 4, 2**40) for seed in range(4)]

    def mean(placer):
        return sum(testbed.measure(task, placer.place(task)).overall_ms for task in tasks) / len(tasks)

    assert mean(NeuroShardPlacer(models, columns=False)) < 0.9 * mean(RandomPlacer())


@pytest.mark.parametrize(("dim", "splits"), [(None, True), (16, False)])
def test_columns_are_split_only_by_models_that_know_what_dims_cost(monkeypatch, dim, splits):
    monkeypatch.setattr(neuroshard_fitting, "NeuroShardTraining", lambda: NeuroShardTraining(steps=2))
    placer = peer("neuroshard_columns", None, samples=measured(4, dim=dim))
    assert placer.columns == placer.costs.knows_dims == splits


def test_the_name_alone_says_whether_tables_may_be_split(monkeypatch):
    monkeypatch.setattr(neuroshard_fitting, "NeuroShardTraining", lambda: NeuroShardTraining(steps=2))
    names = [*FITTED, *ON_NETWORK]
    placers = [peer(name, learnt_placer(), samples=measured(4)) for name in names]
    assert [placer.columns for placer in placers] == [False, True, False, True]
    assert [placer.name for placer in placers] == names


def test_a_slow_link_is_learnt_from_the_samples():
    tables = tables_of([100, 100], [64, 4], [1.0, 16.0])  # of equal compute
    task, generator = PlacementTask(tables, 2, 2**30), torch.Generator().manual_seed(0)
    samples = []
    for _ in range(40):
        placement = Placement(torch.randint(2, (2,), generator=generator), 2)
        dims = torch.zeros(2).index_add_(0, placement.device, tables.dim.float())
        held = torch.bincount(placement.device, minlength=2).float()
        costs = DeviceCosts(
            forward_compute_ms=held, forward_comm_ms=dims / 8, backward_comm_ms=dims / 4, backward_compute_ms=held
        )
        overall_ms = float(costs.overall_ms())
        samples.append(
            CostSample(
                task=task,
                costs=costs,
                overall_ms=overall_ms,
                spread_ms=0.0,
                repeats=1,
                clock="model",
                testbed="own",
                hardware="abacus",
                batch_size=4,
                placement=placement,
            )
        )
    models = fitted_models(samples, 0, SHORT)
    forward = models.forward_comm.predicted_ms(torch.tensor([[[64.0, 4.0], [16.0, 0.0]]]))
    backward = models.backward_comm.predicted_ms(torch.tensor([[[64.0, 4.0]]]))
    assert backward[0].tolist() == pytest.approx([16.0, 1.0], abs=1.5)
    assert forward[0].tolist() == pytest.approx([8.0, 0.5], abs=1.0)


def test_other_numbers_of_devices_are_refused_by_name(models, samples):
    with pytest.raises(NoPlacementError, match=r"placements on 4 devices.*cannot place on 2.*neuroshard_predicted"):
        NeuroShardPlacer(models).place(PlacementTask(pool_of(8), 2, 2**40))
    with pytest.raises(ValueError, match=r"samples are of the layouts .*\(2, None\), \(4, None\)"):
        fitted_models([*samples, *measured(4, num_devices=2)], 0, SHORT)


def test_too_few_samples_are_refused_by_name(samples):
    with pytest.raises(ValueError, match=r"measured placements and there are 1, so.*neuroshard_predicted"):
        fitted_models(samples[:1], 0, SHORT)
    with pytest.raises(ValueError, match="steps is 0"):
        NeuroShardTraining(steps=0)


def test_the_same_seed_gives_the_same_models_and_leaves_the_global_generator_alone(samples):
    before = torch.get_rng_state()
    short = NeuroShardTraining(steps=5)
    first, second = (fitted_models(samples, 0, short) for _ in range(2))
    sums = latent_sums(first, samples[0])
    assert torch.equal(first.overall_ms(sums), second.overall_ms(sums))
    assert torch.equal(torch.get_rng_state(), before)
