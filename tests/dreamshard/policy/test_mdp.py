import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from dreamshard.cost_model import PaperCostNetwork, TrainingDivergedError
from dreamshard.policy.mdp import Episode, PolicyNetwork, log_probs, policy_gradient_loss, rollout, update
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import ROW_BYTES, pool_of, shard_sums, task_of
from tests.helpers.trained import learnt

TASK = PlacementTask(pool_of(16), 4, 2**33)


def seeded(network, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def episode(task=TASK, network=None):
    return Episode.of(task, network or learnt().cost_network, learnt().normaliser)


def play(task, times=1, greedy=False, network=None):
    start, policy = episode(task, network), seeded(PolicyNetwork)
    generator = None if greedy else torch.Generator().manual_seed(0)
    taken = rollout(policy, start, times, generator)
    with torch.no_grad():
        return start, taken, *log_probs(policy, start, taken)


@settings(max_examples=15)
@given(rows=st.lists(st.integers(1, 50), min_size=1, max_size=12), num_devices=st.integers(1, 4))
def test_an_episode_never_exceeds_memory_while_a_device_has_room(rows, num_devices):
    room = -(-sum(rows) // num_devices) + max(rows)
    task = task_of(rows, num_devices, room)
    _, taken, _, _ = play(task, times=8)
    assert shard_sums(task.table_bytes, taken.device, num_devices).max() <= room * ROW_BYTES
    assert taken.feasible.all()


def test_tables_come_in_descending_predicted_cost():
    task, network = PlacementTask(pool_of(10), 3, 2**30), learnt().cost_network
    start, taken, _, _ = play(task)
    latents = network.encode(learnt().normaliser(task.tables))  # [T, L]
    on_first = torch.nn.functional.pad(latents[:, None], (0, 0, 0, 2))  # [T, D, L]
    assert (network.phases_ms(on_first)[:, 0].sum(dim=-1)[start.order].diff() <= 0).all()
    alone = network.phases_ms(latents[:, None]).sum((-1, -2))
    assert not (alone[start.order].diff() <= 0).all(), "wide tables come earlier than by compute"
    assert torch.equal(taken.device[0][start.order], taken.actions[0])


@pytest.mark.parametrize("network", [lambda: learnt().cost_network, lambda: seeded(PaperCostNetwork)])
@torch.no_grad()
def test_costs_of_a_rollout_are_those_of_the_network(network):
    task, network = PlacementTask(pool_of(20), 4, 2**30), network()
    _, taken, _, _ = play(task, times=5, network=network)
    sums = shard_sums(network.encode(learnt().normaliser(task.tables)), taken.device, 4)
    assert torch.allclose(taken.loads, sums, rtol=1e-4)
    others = torch.nn.functional.one_hot(taken.actions[:, -1], 4) == 0  # devices that the last step leaves as they are
    expected = network.phases_ms(sums)[..., [0, 3]]
    assert torch.allclose(taken.costs[:, -1, :, :2][others], expected[others], rtol=1e-3, atol=1e-5)


def test_recomputed_probabilities_equal_the_sampled_ones():
    draws = 6000
    _, taken, log_p, _ = play(task_of([40, 30, 20], 2, 70), times=draws)
    code = (taken.actions * torch.tensor([4, 2, 1])).sum(1)
    seen = torch.bincount(code, minlength=8) / draws
    claimed = torch.zeros(8)
    claimed[code] = log_p.sum(1).exp()
    assert float(claimed.sum()) == pytest.approx(1, abs=2e-3)
    deviation = (claimed * (1 - claimed) / draws).sqrt() + 1e-4
    assert ((seen - claimed).abs() < 5 * deviation).all()


def test_entropy_is_even_chances_first_and_zero_without_choice():
    _, _, log_p, entropy = play(task_of([9, 5, 4], 2, 9), times=16)  # once 9 is placed, the rest has one device
    assert entropy[:, 0].tolist() == pytest.approx([math.log(2)] * 16, rel=1e-4)
    forced = torch.isclose(log_p, torch.zeros(()), atol=1e-6)
    assert torch.equal(torch.isclose(entropy, torch.zeros(()), atol=1e-5), forced)
    assert forced.any()


@pytest.mark.parametrize(("cost", "sign"), [([1.0, 3.0], 1), ([100.0, 900.0], 1), ([2.0, 2.0], 0)])
def test_the_gradient_moves_towards_the_cheaper_device(cost, sign):
    """Of two episodes, on a device each; advantages are +-sqrt(0.5), with Bessel's correction."""
    weights = torch.zeros(2, requires_grad=True)
    log_prob = torch.log_softmax(weights, dim=0)[:, None]
    loss = policy_gradient_loss(log_prob, torch.zeros(2, 1), torch.tensor(cost), torch.tensor([True, True]), 0.0)
    step = sign * 0.5 * math.sqrt(0.5)  # -mean(advantage x (taken - 0.5))
    assert torch.autograd.grad(loss, weights)[0].tolist() == pytest.approx([-step, step], rel=1e-4)


@pytest.mark.slow
def test_the_policy_learns_to_place_cheaper():
    start, policy, generator = episode(), seeded(PolicyNetwork), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)

    def mean_cost():
        drawn = rollout(policy, start, 64, torch.Generator().manual_seed(1))
        return float(start.network.overall_ms(drawn.loads).mean())

    before = mean_cost()
    figures = update(policy, optimizer, start, 64, 0.001, torch.Generator().manual_seed(1))
    assert figures.reward == pytest.approx(-before, rel=1e-4)
    for _ in range(40):
        figures = update(policy, optimizer, start, 10, 0.001, generator)
    assert mean_cost() < 0.9 * before
    assert 0 <= figures.entropy <= math.log(4)


def test_a_nan_policy_ends_training_before_its_step():
    policy = PolicyNetwork()
    policy.score.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingDivergedError):
        update(policy, torch.optim.Adam(policy.parameters()), episode(), 4, 0.001, torch.Generator().manual_seed(0))
