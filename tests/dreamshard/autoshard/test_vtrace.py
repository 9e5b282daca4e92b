"""V-trace against cases that can be checked by hand, and against its definition."""

import torch

from dreamshard.autoshard.vtrace import vtrace


def test_an_episode_of_the_policy_that_learns_is_worth_the_rewards_that_follow():
    log_prob, rewards = torch.rand(3, 5).log(), torch.rand(3, 5)
    target = vtrace(log_prob, log_prob, rewards, torch.zeros(3, 5), discount=1.0)
    to_come = rewards.flip(1).cumsum(1).flip(1)
    assert torch.allclose(target.values, to_come)
    assert torch.allclose(target.advantages, to_come)


def test_a_perfect_estimate_leaves_no_advantage():
    rewards = torch.tensor([[0.0, 0.0, 0.8]])
    target = vtrace(torch.zeros(1, 3), torch.zeros(1, 3), rewards, torch.full((1, 3), 0.8), discount=1.0)
    assert torch.allclose(target.values, torch.full((1, 3), 0.8))
    assert torch.allclose(target.advantages, torch.zeros(1, 3))


def test_actions_that_the_policy_would_no_longer_take_teach_little():
    rewards = torch.tensor([[0.0, 1.0]])
    halved = vtrace(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]).log(), rewards, torch.zeros(1, 2), discount=1.0)
    assert torch.allclose(halved.values, torch.tensor([[0.5, 1.0]]))
    assert torch.allclose(halved.advantages, torch.tensor([[0.5, 1.0]]))


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
