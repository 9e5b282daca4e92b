"""AutoShard's episodes: what is rewarded, what is legal, and that learning sees what acting saw."""

from dataclasses import replace

import pytest
import torch

from dreamshard.autoshard.episodes import Episodes, random_sets, rollout
from dreamshard.autoshard.learning import actor_critic_loss, actor_critic_updates
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork
from dreamshard.constraints import Constraints
from dreamshard.cost_model import Normaliser
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, roomy_task, tables_of, task_of
from tests.helpers.trained import learnt


class ByCount(ComputeCostNetwork):
    """A millisecond per table."""

    def compute_ms(self, sums):
        return sums[..., -1]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rolled(task, network=None, count=1, generator=None):
    state = learnt("autoshard")
    network = network or state.cost_network
    return rollout(state.policy, network, Episodes.of([task] * count, network, state.normaliser), generator)


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
    episodes = Episodes.of(tasks, network, Normaliser.fit(pool_of(24)))
    taken = rollout(policy, network, episodes, seeded())
    loss, _ = actor_critic_loss(policy, episodes, taken, entropy_weight=0.0)
    values = policy.values(policy.states(policy.encode(episodes.features)))
    advantages = taken.reward[:, None] - values
    expected = -(advantages.detach() * taken.log_prob).sum() + 0.25 * advantages.square().sum()
    assert torch.allclose(loss, expected, rtol=1e-4)


@pytest.mark.slow
def test_learning_makes_placements_balanced():
    """Tables that cost the same: the share of balanced placements rises."""
    torch.manual_seed(0)
    policy, network = AutoShardPolicy(), ByCount()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    episodes = Episodes.of([roomy_task(pool_of(8), 2)] * 64, network, Normaliser.fit(pool_of(24)))
    before, generator = rollout(policy, network, episodes, seeded(1)).reward.mean(), seeded()
    for _ in range(8):
        figures = actor_critic_updates(policy, optimizer, network, episodes, 16, 0.001, generator)
    assert len(figures) == 4
    assert rollout(policy, network, episodes, seeded(1)).reward.mean() > before + 0.1


def test_random_sets_have_all_sizes_from_a_single_table_to_nearly_all():
    task, generator = task_of(range(1, 41), 4, 10_000), seeded()
    sizes = []
    for _ in range(60):
        part, placement = random_sets(task, "part", generator)
        assert not violation(part, placement)
        assert set(part.tables.names) <= set(task.tables.names)
        sizes += torch.bincount(placement.device, minlength=4).tolist()
    assert {1, 2, 3, 5} <= set(sizes)
    assert max(sizes) > 30
