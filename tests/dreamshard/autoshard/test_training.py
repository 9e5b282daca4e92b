"""Training AutoShard: its proposals, its samples, V-trace, and the placements of a short run."""

from dataclasses import replace

import pytest
import torch

from dreamshard.autoshard import ComputeCostNetwork
from dreamshard.autoshard.learning import vtrace
from dreamshard.cost_model import CostData
from dreamshard.shards import violation
from dreamshard.task_sets.sampling import sample_tasks
from dreamshard.training import with_algorithm
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import device_costs, simulated
from tests.helpers.trained import TINY, learnt, make_placer, propose, rounds, start_training, tiny_tasks

TINY_AUTOSHARD = with_algorithm(TINY, "autoshard")


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


def test_each_device_with_tables_is_a_sample_of_forward_and_backward_compute():
    proposals = propose(begin(), tiny_tasks())
    samples = [simulated().measure(*proposal) for proposal in proposals]
    data = ComputeCostNetwork.shards(CostData.of(samples, learnt("autoshard").normaliser))
    holding = [(s, d) for s in samples for d in range(s.task.num_devices) if (s.placement.device == d).any()]
    assert data.held.sum(dim=1).tolist() == [int((s.placement.device == d).sum()) for s, d in holding]
    expected = [float(s.costs.forward_compute_ms[d] + s.costs.backward_compute_ms[d]) for s, d in holding]
    assert data.compute_ms.tolist() == pytest.approx(expected)


def test_a_perfect_estimate_leaves_no_advantage():
    rewards = torch.tensor([[0.0, 0.0, 0.8]])
    target = vtrace(torch.zeros(1, 3), torch.zeros(1, 3), rewards, torch.full((1, 3), 0.8), discount=1.0)
    assert torch.allclose(target.values, torch.full((1, 3), 0.8))
    assert torch.allclose(target.advantages, torch.zeros(1, 3))


def test_targets_are_those_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    behaviour, learner, rewards, values = (torch.randn(4, 6, generator=generator) for _ in range(4))
    discount = 0.9
    target = vtrace(behaviour, learner, rewards, values, discount)
    weight = (learner - behaviour).exp().clamp(max=1)
    after = torch.cat([values[:, 1:], torch.zeros(4, 1)], dim=1)
    delta = weight * (rewards + discount * after - values)
    for s in range(6):
        expected = values[:, s].clone()
        for t in range(s, 6):  # equation 1 of Espeholt et al. 2018
            expected += discount ** (t - s) * weight[:, s:t].prod(dim=1) * delta[:, t]
        assert torch.allclose(target.values[:, s], expected, atol=1e-5)


@pytest.mark.slow
def test_a_short_run_places_unseen_tasks_of_another_size_better_than_chance():
    config = replace(
        TINY_AUTOSHARD, iterations=2, cost_steps=80, policy_updates=8, episodes=8, policy_learning_rate=3e-3
    )
    state, _ = rounds(begin(config=config), 2)
    placer, testbed, generator = make_placer(state), simulated(noise=0.0), torch.Generator().manual_seed(0)
    placed, drawn = [], []
    for task in sample_tasks(pool_of(40, seed=9), 6, 20, 4, 2**33, generator):
        random = torch.randint(4, (40, 20), generator=generator)
        costs = device_costs(testbed, task.tables, torch.cat([placer.place(task).device[None], random]), 4)
        largest_ms = (costs.forward_compute_ms + costs.backward_compute_ms).amax(dim=-1)  # [41]
        placed.append(float(largest_ms[0]))
        drawn.append(float(largest_ms[1:].mean()))
    assert sum(placed) < 0.95 * sum(drawn)
