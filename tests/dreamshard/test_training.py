"""Algorithm 1: a run is its seed, and an interrupted run is the run."""

import math
from dataclasses import replace

import pytest
import torch

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.model_files import load_state, save_state
from dreamshard.placer import NoPlacementError
from dreamshard.task_sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.training import (
    TrainingConfig,
    continue_from,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    start_training,
)
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, bits, learnt, rounds, same, tiny_tasks


def begin(seed=0, config=TINY):
    return start_training(pool_of(24), config, seed)


def test_a_seed_gives_the_same_bits_and_another_seed_others():
    (one, samples), (two, again), (other, _) = (rounds(begin(seed), 2) for seed in (3, 3, 4))
    assert same(one, two)
    assert [s.overall_ms for s in samples] == [s.overall_ms for s in again]
    assert not same(one, other)


@pytest.mark.parametrize("kind", ["structured", "paper"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, kind):
    config = replace(TINY, cost_network=kind, policy="paper" if kind == "paper" else "lookahead")
    uninterrupted, _ = rounds(begin(config=config), 3)
    stopped, samples = rounds(begin(config=config), 2)
    save_state(stopped, tmp_path / "state")
    resumed, _ = rounds(load_state(tmp_path / "state"), 1, samples)
    assert resumed.iteration == uninterrupted.iteration == 3
    assert same(resumed, uninterrupted)


def test_a_run_stopped_between_fitting_and_improving_goes_on_too(tmp_path):
    ends = []
    for stops in (False, True):
        state, tasks, testbed = begin(), tiny_tasks(), simulated()
        samples = [testbed.measure(*proposal) for proposal in propose(state, tasks)]
        fit_costs(state, samples)
        if stops:
            save_state(state, tmp_path / "state")
            state = load_state(tmp_path / "state")
        improve_policy(state, tasks)
        ends.append(state)
    assert same(*ends)


def test_proposals_are_legal_and_as_many_as_asked_for():
    state, tasks = begin(), tiny_tasks()
    proposals = propose(state, tasks)
    assert len(proposals) == TINY.placements_per_iteration
    assert all(task.is_legal(placement) and any(task is each for each in tasks) for task, placement in proposals)


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


def test_the_first_round_has_nothing_held_out_and_later_ones_have():
    state, tasks, testbed = begin(), tiny_tasks(), simulated()
    samples = [testbed.measure(*proposal) for proposal in propose(state, tasks)]
    first = fit_costs(state, samples)
    improve_policy(state, tasks)
    samples += [testbed.measure(*proposal) for proposal in propose(state, tasks)]
    second = fit_costs(state, samples)
    assert first.heldout_mape is None
    assert second.heldout_mape > 0
    assert -1 <= second.heldout_spearman <= 1


def test_a_short_run_places_unseen_tasks_better_than_chance():
    placer, testbed = make_placer(learnt()), simulated(noise=0.0)
    tasks = sample_tasks(pool_of(40, seed=9), 6, 12, 4, 2**33, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for task in tasks:
        found = testbed.measure(task, placer.place(task, budget_ms=1e6)).overall_ms
        random = torch.randint(4, (40, 12), generator=generator)
        drawn = testbed.device_costs(task.tables, random, 4).overall_ms().mean()
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


def test_going_on_from_a_placer_keeps_its_networks_and_normaliser_and_leaves_it_as_it_is():
    before, samples = rounds(begin(), 2)
    placer = make_placer(before)
    kept = {name: value.clone() for name, value in bits(before).items()}
    state = continue_from(placer, TINY.warm(), seed=7)
    networks = [name for name in kept if name != "generator"]
    assert all(torch.equal(bits(state)[name], kept[name]) for name in networks)
    assert torch.equal(state.normaliser.mean, placer.normaliser.mean)
    rounds(state, 1, samples)
    assert all(torch.equal(bits(before)[name], kept[name]) for name in networks)


def test_the_error_of_a_placer_to_go_on_from_is_known_before_its_first_round_fits_anything():
    before, samples = rounds(begin(), 2)
    state = continue_from(make_placer(before), TINY.warm(), seed=7)
    fresh = [simulated().measure(task, placement) for task, placement in propose(state, tiny_tasks())]
    assert fit_costs(state, [*samples, *fresh]).heldout_mape is not None
    cold = begin()
    fresh = [simulated().measure(task, placement) for task, placement in propose(cold, tiny_tasks())]
    assert fit_costs(cold, fresh).heldout_mape is None


def test_a_warm_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    before, samples = rounds(begin(), 1)
    whole, _ = rounds(continue_from(make_placer(before), TINY, seed=7), 2, samples)
    stopped, so_far = rounds(continue_from(make_placer(before), TINY, seed=7), 1, samples)
    save_state(stopped, tmp_path / "state")
    resumed, _ = rounds(load_state(tmp_path / "state"), 1, so_far)
    assert resumed.warm
    assert same(resumed, whole)


def test_a_placer_with_other_networks_is_no_start():
    with pytest.raises(
        ValueError, match="'structured' and 'lookahead', but the training needs 'paper' and 'lookahead'"
    ):
        continue_from(make_placer(begin()), replace(TINY, cost_network="paper"), seed=0)


def test_what_remains_for_a_warm_training_is_less_but_never_more_than_all():
    config = TrainingConfig(warm_iterations=3, warm_rate=0.5)
    assert config.warm().measurements == 30 < config.measurements == 100
    assert config.warm().cost_learning_rate == 0.5 * config.cost_learning_rate
    assert replace(config, iterations=2).warm().iterations == 2
