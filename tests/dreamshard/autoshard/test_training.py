"""Training AutoShard: what is measured, and what comes of it."""

from dataclasses import replace

import pytest
import torch

from dreamshard.autoshard import (
    AutoShardConfig,
    make_placer,
    propose,
    start_training,
)
from dreamshard.autoshard.cost_network import ShardCosts
from dreamshard.autoshard.proposals import random_sets
from dreamshard.legality import violation
from dreamshard.recipes import recipe
from dreamshard.task_sampling import sample_tasks
from dreamshard.training import TrainingConfig
from tests.helpers.autoshard import TINY_AUTOSHARD, learnt_autoshard
from tests.helpers.tables import pool_of, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import rounds, tiny_tasks


def begin(seed=0, config=TINY_AUTOSHARD):
    return start_training(pool_of(24), config, seed)


def test_proposals_are_legal_and_have_names_of_their_own():
    state, tasks = begin(config=replace(TINY_AUTOSHARD, placements_per_iteration=20)), tiny_tasks()
    proposals = propose(state, tasks)
    assert len(proposals) == 20
    assert all(not violation(task, placement) for task, placement in proposals)
    own = [any(task is each for each in tasks) for task, _ in proposals]
    assert sum(own) == 10
    partial = [task.name for (task, _), known in zip(proposals, own, strict=True) if not known]
    assert len(set(partial)) == len(partial)


def test_random_sets_have_all_sizes_from_a_single_table_to_nearly_all():
    task, generator = task_of(range(1, 41), 4, 10_000), torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(60):
        part, placement = random_sets(task, "part", generator)
        assert not violation(part, placement)
        assert set(part.tables.names) <= set(task.tables.names)
        sizes += torch.bincount(placement.device, minlength=4).tolist()
    assert {1, 2, 3, 5} <= set(sizes)
    assert max(sizes) > 30


def test_each_device_with_tables_is_a_sample_of_forward_and_backward_compute():
    proposals = propose(begin(), tiny_tasks())
    samples = [simulated().measure(*proposal) for proposal in proposals]
    data = ShardCosts.of(samples, learnt_autoshard().normaliser)
    holding = [(s, d) for s in samples for d in range(s.task.num_devices) if (s.placement.device == d).any()]
    assert data.held.sum(dim=1).tolist() == [int((s.placement.device == d).sum()) for s, d in holding]
    expected = [float(s.costs.forward_compute_ms[d] + s.costs.backward_compute_ms[d]) for s, d in holding]
    assert data.compute_ms.tolist() == pytest.approx(expected)


@pytest.mark.slow
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
