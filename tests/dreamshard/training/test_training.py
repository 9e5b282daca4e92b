"""Algorithm 1: what is proposed, fitted and learned, and what a training refuses."""

import math
from dataclasses import replace

import pytest
import torch

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.placer import NoPlacementError
from dreamshard.shards import violation
from dreamshard.task_sets.sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import device_costs, simulated
from tests.helpers.trained import (
    TINY,
    continue_from,
    fit_costs,
    learnt,
    make_placer,
    propose,
    rounds,
    start_training,
    tiny_tasks,
)


def begin(seed=0, config=TINY):
    return start_training(pool_of(24), config, seed)


def test_proposals_are_legal_and_as_many_as_asked_for():
    state, tasks = begin(), tiny_tasks()
    proposals = propose(state, tasks)
    assert len(proposals) == TINY.placements_per_iteration
    assert all(not violation(task, placement) and any(task is each for each in tasks) for task, placement in proposals)


def test_tasks_too_tight_for_the_policy_are_an_error_that_says_what_to_do():
    pool = pool_of(3)
    tight = PlacementTask(pool, 1, int(pool.memory_bytes("fp32", "sgd").sum()))
    assert len(propose(begin(), [tight])) == TINY.placements_per_iteration
    same_size = pool.select([int(pool.memory_bytes("fp32", "sgd").argmax())])
    three = type(pool)(
        ("a", "b", "c"),
        *(getattr(same_size, name).repeat_interleave(3, 0) for name in ("rows", "dim", "pooling_factor")),
        *(getattr(same_size, name).repeat_interleave(3, 0) for name in ("bins", "lookups", "unique_rows")),
    )
    size = int(three.memory_bytes("fp32", "sgd")[0])
    with pytest.raises(NoPlacementError, match="give the devices of the tasks more than"):
        propose(begin(), [PlacementTask(three, 2, size * 3 // 2)])  # room for the sum, not for any split


def test_a_short_run_places_unseen_tasks_better_than_chance():
    placer, testbed = make_placer(learnt()), simulated(noise=0.0)
    tasks = sample_tasks(pool_of(40, seed=9), 6, 12, 4, 2**33, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for task in tasks:
        found = testbed.measure(task, placer.place(task)).overall_ms
        random = torch.randint(4, (40, 12), generator=generator)
        drawn = device_costs(testbed, task.tables, random, 4).overall_ms().mean()
        assert found < 0.8 * float(drawn)


@pytest.mark.parametrize(("name", "zero"), [("iterations", 0), ("episodes", 0), ("cost_learning_rate", 0.0)])
def test_a_count_or_rate_of_zero_is_refused_by_name(name, zero):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        TrainingConfig(**{name: zero})


def test_placements_that_did_not_fit_are_not_learnt_from():
    state, other = (start_training(pool_of(24), TINY, seed=0) for _ in range(2))
    tasks = tiny_tasks()
    samples = [simulated().measure(task, placement) for task, placement in propose(state, tasks)]
    misfit = replace(
        samples[0],
        costs=DeviceCosts.from_phases(torch.zeros(2, 4)),
        overall_ms=math.inf,
        infeasible=Infeasible(device=0, asked_bytes=2, free_bytes=1),
    )
    propose(other, tasks)
    assert fit_costs(state, [*samples, misfit]).loss == fit_costs(other, samples).loss


def test_the_error_of_a_placer_to_go_on_from_is_known_before_its_first_round_fits_anything():
    before, samples = rounds(begin(), 2)
    state = continue_from(make_placer(before), TINY.warm(), seed=7)
    fresh = [simulated().measure(task, placement) for task, placement in propose(state, tiny_tasks())]
    assert fit_costs(state, [*samples, *fresh]).heldout_mape is not None
    cold = begin()
    fresh = [simulated().measure(task, placement) for task, placement in propose(cold, tiny_tasks())]
    assert fit_costs(cold, fresh).heldout_mape is None


def test_what_remains_for_a_warm_training_is_less_but_never_more_than_all():
    config = TrainingConfig(warm_iterations=3, warm_rate=0.5)
    assert config.warm().measurements == 30 < config.measurements == 100
    assert config.warm().cost_learning_rate == 0.5 * config.cost_learning_rate
    assert replace(config, iterations=2).warm().iterations == 2
