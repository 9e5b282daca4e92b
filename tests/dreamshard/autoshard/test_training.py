"""Training AutoShard: what is measured, that a run is its seed, and that an interrupted run is the run."""

from dataclasses import replace

import pytest
import torch

from dreamshard.autoshard import (
    AutoShardConfig,
    continue_from,
    fit_costs,
    improve_policy,
    load_state,
    make_placer,
    propose,
    save_state,
    start_training,
)
from dreamshard.autoshard.cost_network import ShardCosts
from dreamshard.autoshard.proposals import random_sets
from dreamshard.recipes import recipe
from dreamshard.task_sampling import sample_tasks
from dreamshard.training import TrainingConfig
from tests.helpers.autoshard import TINY_AUTOSHARD, learnt_autoshard
from tests.helpers.tables import pool_of, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import bits, rounds, same, tiny_tasks


def begin(seed=0, config=TINY_AUTOSHARD):
    return start_training(pool_of(24), config, seed)


def test_a_seed_gives_the_same_bits_and_another_seed_others():
    (one, samples), (two, again), (other, _) = (rounds(begin(seed), 1) for seed in (3, 3, 4))
    assert same(one, two)
    assert [s.overall_ms for s in samples] == [s.overall_ms for s in again]
    assert not same(one, other)


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    uninterrupted, _ = rounds(begin(), 3)
    stopped, samples = rounds(begin(), 2)
    save_state(stopped, tmp_path / "state")
    resumed, _ = rounds(load_state(tmp_path / "state"), 1, samples)
    assert resumed.iteration == uninterrupted.iteration == 3
    assert same(resumed, uninterrupted)


def test_a_run_stopped_between_fitting_and_improving_goes_on_too(tmp_path):
    ends = []
    for stops in (False, True):
        state, tasks = begin(), tiny_tasks()
        fit_costs(state, [simulated().measure(*proposal) for proposal in propose(state, tasks)])
        if stops:
            save_state(state, tmp_path / "state")
            state = load_state(tmp_path / "state")
        improve_policy(state, tasks)
        ends.append(state)
    assert same(*ends)


def test_proposals_are_legal_and_have_names_of_their_own():
    state, tasks = begin(config=replace(TINY_AUTOSHARD, placements_per_iteration=20)), tiny_tasks()
    proposals = propose(state, tasks)
    assert len(proposals) == 20
    assert all(task.is_legal(placement) for task, placement in proposals)
    own = [any(task is each for each in tasks) for task, _ in proposals]
    assert sum(own) == 10
    partial = [task.name for (task, _), known in zip(proposals, own, strict=True) if not known]
    assert len(set(partial)) == len(partial)


def test_random_sets_have_all_sizes_from_a_single_table_to_nearly_all():
    task, generator = task_of(range(1, 41), 4, 10_000), torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(60):
        part, placement = random_sets(task, "part", generator)
        assert part.is_legal(placement)
        assert set(part.tables.names) <= set(task.tables.names)
        sizes += torch.bincount(placement.device, minlength=4).tolist()
    assert {1, 2, 3, 5} <= set(sizes)
    assert max(sizes) > 30


def test_each_device_with_tables_is_a_sample_of_forward_and_backward_compute():
    proposals = propose(begin(), tiny_tasks())
    samples = [simulated().measure(*proposal) for proposal in proposals]
    data = ShardCosts.of(samples, learnt_autoshard().normaliser)
    holding = [(s, d) for s in samples for d in range(s.task.num_devices) if s.placement.tables_of(d)]
    assert data.held.sum(dim=1).tolist() == [len(s.placement.tables_of(d)) for s, d in holding]
    expected = [float(s.costs.forward_compute_ms[d] + s.costs.backward_compute_ms[d]) for s, d in holding]
    assert data.compute_ms.tolist() == pytest.approx(expected)


def test_the_first_round_has_nothing_held_out_and_later_ones_have():
    state, samples = rounds(begin(), 1)
    fresh = [simulated().measure(*proposal) for proposal in propose(state, tiny_tasks())]
    later, first = fit_costs(state, [*samples, *fresh]), fit_costs(begin(), samples)
    assert first.heldout_mape is None
    assert later.heldout_mape > 0
    assert -1 <= later.heldout_spearman <= 1


def test_going_on_from_a_placer_keeps_its_networks_and_leaves_it_as_it_is():
    before, samples = rounds(begin(), 1)
    kept = {name: value.clone() for name, value in bits(before).items() if name != "generator"}
    state = continue_from(make_placer(before), TINY_AUTOSHARD.warm(), seed=7)
    assert all(torch.equal(bits(state)[name], value) for name, value in kept.items())
    rounds(state, 1, samples)
    assert all(torch.equal(bits(before)[name], value) for name, value in kept.items())
    assert not same(state, before)


def test_a_short_run_places_unseen_tasks_of_another_size_better_than_chance():
    config = replace(
        TINY_AUTOSHARD, iterations=2, cost_steps=80, policy_updates=24, episodes=8, policy_learning_rate=3e-3
    )
    state, _ = rounds(begin(config=config), 2)
    placer, testbed, generator = make_placer(state), simulated(noise=0.0), torch.Generator().manual_seed(0)
    placed, drawn = [], []
    for task in sample_tasks(pool_of(40, seed=9), 6, 20, 4, 2**33, generator):
        random = torch.randint(4, (40, 20), generator=generator)
        costs = testbed.device_costs(task.tables, torch.cat([placer.place(task).device[None], random]), 4)
        largest_ms = (costs.forward_compute_ms + costs.backward_compute_ms).amax(dim=-1)  # [41]
        placed.append(float(largest_ms[0]))
        drawn.append(float(largest_ms[1:].mean()))
    assert sum(placed) < 0.95 * sum(drawn)


def test_settings_that_cannot_be_trained_with_are_refused_by_name():
    for name, value in {"iterations": 0, "policy_learning_rate": 0.0, "discount": 1.5}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            AutoShardConfig(**{name: value})


def test_the_settings_follow_those_of_a_recipe():
    assert AutoShardConfig.of(TrainingConfig()) == AutoShardConfig()
    smoke = recipe("smoke").training
    config = AutoShardConfig.of(smoke)
    assert config.measurements == smoke.measurements
    assert config.policy_updates < AutoShardConfig().policy_updates
