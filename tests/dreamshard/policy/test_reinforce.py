"""REINFORCE on the estimated MDP."""

import math

import pytest
import torch

from dreamshard.cost_model import TrainingDivergedError
from dreamshard.policy.mdp import Episode, PolicyNetwork, rollout
from dreamshard.policy.reinforce import policy_gradient_loss, update
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt

TWO = torch.tensor([[0], [1]])  # two episodes of one table: the first takes device 0, the second device 1
FEASIBLE = torch.tensor([True, True])


def gradient(cost, feasible=FEASIBLE, entropy_weight=0.0, logits=(0.0, 0.0)):
    """Of the loss by the two logits."""
    weights = torch.tensor(logits, requires_grad=True)
    log_p = torch.log_softmax(weights, dim=0)
    entropy = -(log_p.exp() * log_p).sum().expand(2, 1)
    loss = policy_gradient_loss(log_p[TWO], entropy, torch.tensor(cost), feasible, entropy_weight)
    return torch.autograd.grad(loss, weights)[0]


def test_the_gradient_moves_towards_the_cheaper_device():
    towards_first, towards_second = gradient([1.0, 3.0]), gradient([3.0, 1.0])
    # with Bessel's correction, advantages are +-sqrt(0.5); d(loss)/d(logits) = -mean(advantage x (taken - 0.5))
    step = 0.5 * math.sqrt(0.5)
    assert towards_first.tolist() == pytest.approx([-step, step])
    assert towards_second.tolist() == pytest.approx([step, -step])


def test_costs_count_in_units_of_their_spread():
    assert gradient([1.0, 3.0]).tolist() == pytest.approx(gradient([100.0, 900.0]).tolist(), rel=1e-4)


def test_episodes_that_all_cost_the_same_teach_nothing():
    assert gradient([2.0, 2.0]).tolist() == [0.0, 0.0]


@pytest.mark.slow
def test_the_policy_learns_to_place_cheaper():
    task = PlacementTask(pool_of(16), 4, 2**33)
    start = Episode.of(task, learnt().cost_network, learnt().normaliser)
    torch.manual_seed(0)
    policy = PolicyNetwork()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)

    def mean_cost():
        drawn = rollout(policy, start, 64, torch.Generator().manual_seed(1))
        return float(start.network.overall_ms(drawn.loads).mean())

    before = mean_cost()
    for _ in range(40):
        figures = update(policy, optimizer, start, 10, 0.001, generator)
    assert mean_cost() < 0.8 * before
    assert 0 <= figures.entropy <= math.log(4)


def test_the_reward_is_minus_the_predicted_cost():
    task = PlacementTask(pool_of(16), 4, 2**33)
    start = Episode.of(task, learnt().cost_network, learnt().normaliser)
    torch.manual_seed(0)
    policy = PolicyNetwork()
    drawn = rollout(policy, start, 8, torch.Generator().manual_seed(5))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    figures = update(policy, optimizer, start, 8, 0.0, torch.Generator().manual_seed(5))
    assert figures.reward == pytest.approx(-float(start.network.overall_ms(drawn.loads).mean()), rel=1e-4)


def test_a_policy_that_is_no_number_ends_training_before_it_is_stepped():
    task = PlacementTask(pool_of(8), 2, 2**33)
    start = Episode.of(task, learnt().cost_network, learnt().normaliser)
    policy = PolicyNetwork()
    with torch.no_grad():
        policy.score.weight.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError, match="last checkpoint is intact"):
        update(policy, torch.optim.Adam(policy.parameters()), start, 4, 0.001, torch.Generator().manual_seed(0))
