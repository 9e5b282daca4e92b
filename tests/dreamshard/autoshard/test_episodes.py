"""AutoShard's episodes: what is rewarded, what is legal, and that learning sees what acting saw."""

from dataclasses import replace

import pytest
import torch

from dreamshard.autoshard.cost_network import ComputeCostNetwork
from dreamshard.autoshard.episodes import episodes_of, rollout
from dreamshard.autoshard.learning import actor_critic_loss, updates
from dreamshard.autoshard.policy_network import AutoShardPolicy
from dreamshard.constraints import Constraints
from dreamshard.cost_model import Normaliser
from dreamshard.tasks import PlacementTask
from tests.helpers.autoshard import TINY_AUTOSHARD, learnt_autoshard
from tests.helpers.tables import pool_of, roomy_task, tables_of, task_of


class ByCount(ComputeCostNetwork):
    """A millisecond per table."""

    def encode(self, normalised):
        return torch.ones(*normalised.shape[:-1], 32)

    def compute_ms(self, sums):
        return sums[..., 0]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rolled(task, network=None, count=1, generator=None):
    state = learnt_autoshard()
    network = network or state.cost_network
    return rollout(state.policy, network, episodes_of([task] * count, network, state.normaliser), generator)


def test_the_reward_is_the_least_over_the_largest_cost_of_a_device():
    taken = rolled(roomy_task(pool_of(9), 3), ByCount(), 32, seeded())
    counts = torch.stack([torch.bincount(device, minlength=3) for device in taken.device])
    assert torch.allclose(taken.reward, counts.amin(1) / counts.amax(1))


def test_an_episode_that_runs_out_of_room_is_punished_by_its_excess():
    pool = tables_of([100, 100, 100])
    taken = rolled(PlacementTask(pool, 2, 150 * 16), ByCount(), 4, seeded())  # 300 rows in two rooms of 150
    assert torch.allclose(taken.reward, torch.full((4,), -50 / 150))


def test_no_device_is_filled_beyond_its_memory_while_another_has_room():
    task = task_of([8, 7, 6, 5, 4, 3, 2, 1], 3, 14)
    taken = rolled(task, count=64, generator=seeded())
    held = torch.stack([torch.zeros(3, dtype=torch.int64).scatter_add_(0, d, task.table_bytes) for d in taken.device])
    fits = held.amax(dim=1) <= task.memory_bytes
    assert fits.any()
    assert torch.equal(taken.reward >= 0, fits)


def test_a_table_stays_on_the_devices_that_it_may_use():
    constraints = Constraints(pinned={"t1": (2,)}, excluded={"t0": (0, 1)})
    task = replace(roomy_task(tables_of([10, 20, 30, 40]), 3), constraints=constraints)
    assert (rolled(task, count=16, generator=seeded()).device[:, :2] == 2).all()


def test_the_loss_finds_the_probabilities_that_actions_were_taken_with():
    """Without a change of the policy every weight is 1, so value targets are the rewards and nothing else."""
    torch.manual_seed(0)
    policy, network, tasks = AutoShardPolicy(), ByCount(), [roomy_task(pool_of(7), 3)] * 8
    episodes = episodes_of(tasks, network, Normaliser.fit(pool_of(24)))
    taken = rollout(policy, network, episodes, seeded())
    config = replace(TINY_AUTOSHARD, entropy_weight=0.0, value_weight=2.0)
    loss, _ = actor_critic_loss(policy, episodes, taken, config)
    values = policy.values(policy.states(policy.encode(episodes.features)))
    advantages = taken.reward[:, None] - values
    expected = -(advantages * taken.log_prob).sum() + advantages.square().sum()
    assert torch.allclose(loss, expected, rtol=1e-4)


@pytest.mark.slow
def test_learning_makes_placements_balanced():
    """Tables that cost the same: the share of balanced placements rises."""
    torch.manual_seed(0)
    policy, network = AutoShardPolicy(), ByCount()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    episodes = episodes_of([roomy_task(pool_of(8), 2)] * 64, network, Normaliser.fit(pool_of(24)))
    config, generator = replace(TINY_AUTOSHARD, episodes=16), seeded()
    before = rollout(policy, network, episodes, seeded(1)).reward.mean()
    for _ in range(8):
        figures = updates(policy, optimizer, network, episodes, config, generator)
    assert len(figures) == 4
    assert rollout(policy, network, episodes, seeded(1)).reward.mean() > before + 0.1
