from dataclasses import replace

import pytest
import torch

from dreamshard.cost_model import CostData, Normaliser
from dreamshard.policy.mdp import Episode
from dreamshard.search.packing import RandomPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.training import with_algorithm
from dreamshard.training.autoshard import AutoShardPolicy, ComputeCostNetwork, actor_critic_loss, rollout, vtrace
from tests.helpers.tables import pool_of, roomy_task, sample_tasks, tables_of, task_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, learnt, make_placer, propose, rounds, start_training, tiny_tasks

TINY_AUTOSHARD = with_algorithm(TINY, "autoshard")


class ByCount(ComputeCostNetwork):
    """A millisecond per table."""

    def compute_ms(self, sums):
        return sums[..., -1]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rolled(task, network=None, count=1, generator=None):
    state = learnt("autoshard")
    return rollout(state.policy, Episode.of(task, network or state.cost_network, state.normaliser), count, generator)


def test_the_reward_is_least_over_largest_device_cost():
    taken = rolled(roomy_task(pool_of(9), 3), ByCount(), 32, seeded())
    counts = torch.stack([torch.bincount(device, minlength=3) for device in taken.device])
    assert torch.allclose(taken.reward, counts.amin(1) / counts.amax(1))


def test_an_episode_without_room_is_punished_by_its_excess():
    task = PlacementTask(tables_of([100, 100, 100]), 2, 150 * 16)  # 300 rows in two rooms of 150
    assert torch.allclose(rolled(task, ByCount(), 4, seeded()).reward, torch.full((4,), -50 / 150))
    task = task_of([8, 7, 6, 5, 4, 3, 2, 1], 3, 14)
    taken = rolled(task, count=64, generator=seeded())
    held = torch.stack([torch.zeros(3, dtype=torch.int64).scatter_add_(0, d, task.table_bytes) for d in taken.device])
    fits = held.amax(dim=1) <= task.memory_bytes
    assert fits.any()
    assert torch.equal(taken.reward >= 0, fits)


def test_the_loss_finds_the_probabilities_of_the_actions():
    """Without a change of the policy every weight is 1, so value targets are the rewards and nothing else."""
    torch.manual_seed(0)
    policy, episode = AutoShardPolicy(), Episode.of(roomy_task(pool_of(7), 3), ByCount(), Normaliser.fit(pool_of(24)))
    taken = rollout(policy, episode, 8, seeded())
    loss, _ = actor_critic_loss(policy, episode, taken, entropy_weight=0.0)
    advantages = taken.reward[:, None] - policy.value(policy.states(policy.encode(episode.features)))[:, 0]
    expected = -(advantages.detach() * taken.log_prob).sum() + 0.25 * advantages.square().sum()
    assert torch.allclose(loss, expected, rtol=1e-4)


def test_targets_are_those_of_the_definition():
    behaviour, learner, rewards, values = torch.randn(4, 4, 6, generator=seeded())
    targets = values + vtrace(behaviour, learner, rewards, values)
    weight = (learner - behaviour).exp().clamp(max=1)
    after = torch.cat([values[:, 1:], torch.zeros(4, 1)], dim=1)
    delta = weight * (rewards + after - values)
    for s in range(6):  # equation 1 of Espeholt et al. 2018
        expected = values[:, s] + sum(weight[:, s:t].prod(dim=1) * delta[:, t] for t in range(s, 6))
        assert torch.allclose(targets[:, s], expected, atol=1e-5)


def test_each_device_with_tables_gives_forward_and_backward():
    state = start_training(pool_of(24), TINY_AUTOSHARD, 0)
    samples = [simulated().measure(*proposal) for proposal in propose(state, tiny_tasks())]
    _, measured = state.cost_network.predicted(CostData.of(samples, state.normaliser))
    holding = [(s.costs, d) for s in samples for d in range(s.task.num_devices) if (s.placement.device == d).any()]
    expected = [float(costs.phases_ms[d, 0] + costs.phases_ms[d, 3]) for costs, d in holding]
    assert measured.tolist() == pytest.approx(expected)


@pytest.mark.slow
def test_a_short_run_places_another_size_better_than_chance():
    longer = {"iterations": 2, "cost_steps": 80, "policy_updates": 8, "episodes": 8, "policy_learning_rate": 3e-3}
    state, _ = rounds(start_training(pool_of(24), replace(TINY_AUTOSHARD, **longer), 0), 2)
    placer, testbed, costs = make_placer(state), simulated(noise=0.0), []
    for task in sample_tasks(pool_of(40, seed=9), 6, 20, 4, 2**33, seeded()):
        placements = [placer.place(task), *(RandomPlacer(seed).place(task) for seed in range(40))]
        phases_ms = torch.stack([testbed.measure(task, placement).costs.phases_ms for placement in placements])
        costs.append((phases_ms[..., 0] + phases_ms[..., 3]).flatten(1).amax(dim=1))  # [41]
    placed, *drawn = torch.stack(costs, dim=1).sum(dim=1).tolist()
    assert placed < 0.95 * sum(drawn) / len(drawn)
