"""Episodes of the estimated MDP: legal, incremental, and with the probabilities that training uses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamshard.cost_model import PaperCostNetwork, shard_latents, shard_sums
from dreamshard.policy.mdp import Episode, PolicyNetwork, legal_devices, log_probs, rollout
from dreamshard.tasks import PlacementTask
from tests.helpers.policy_placer import PolicyPlacer
from tests.helpers.tables import ROW_BYTES, device_memory_bytes, pool_of, task_of
from tests.helpers.trained import learnt


def seeded(network, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def play(task, times=1, seed=0, greedy=False, network=None):
    generator = None if greedy else torch.Generator().manual_seed(seed)
    start = Episode.of(task, network or learnt().cost_network, learnt().normaliser)
    policy = seeded(PolicyNetwork)
    taken = rollout(policy, start, times, generator, record=True)
    with torch.no_grad():
        log_p, entropy = log_probs(policy, start, taken)
    return start, taken, log_p, entropy


def legal(used, size, capacity):
    used = torch.tensor(used)
    room = torch.full(used.shape, capacity)
    return legal_devices(used, torch.tensor(size), room, torch.ones(used.shape, dtype=torch.bool)).tolist()


def test_the_mask_lets_through_what_fits_to_the_last_byte():
    assert legal([[4, 5, 6]], [5], 10) == [[True, True, False]]


def test_if_nothing_fits_the_emptiest_device_keeps_the_softmax_defined():
    assert legal([[9, 7, 8], [0, 9, 9]], [5, 5], 10) == [[False, True, False], [True, False, False]]


@settings(max_examples=15)
@given(rows=st.lists(st.integers(1, 50), min_size=1, max_size=12), num_devices=st.integers(1, 4))
def test_an_episode_never_exceeds_memory_while_a_device_has_room(rows, num_devices):
    room = -(-sum(rows) // num_devices) + max(rows)
    task = task_of(rows, num_devices, room)
    _, taken, _, _ = play(task, times=8)
    assert device_memory_bytes(task.table_bytes, taken.device, num_devices).max() <= room * ROW_BYTES
    assert taken.feasible.all()


def test_sampling_and_loss_have_the_mask_of_the_devices_with_room():
    task = task_of([5, 4, 3, 2, 1], 2, 9)
    start, taken, _, _ = play(task, times=6)
    used = torch.zeros(6, 2, dtype=torch.int64)
    for t in range(5):
        fits = used + start.table_bytes[t] <= task.memory_bytes
        expected = torch.where(fits.any(1, keepdim=True), fits, used == used.min(dim=1, keepdim=True).values)
        assert torch.equal(taken.legal[:, t], expected)
        assert expected.gather(1, taken.actions[:, t, None]).all()
        used.scatter_add_(1, taken.actions[:, t, None], start.table_bytes[t].expand(6, 1))


def test_actions_come_in_the_order_of_placing_and_devices_in_the_tasks_order():
    start, taken, _, _ = play(PlacementTask(pool_of(10), 3, 2**30))
    assert sorted(start.order.tolist()) == list(range(10))
    assert torch.equal(taken.device[0][start.order], taken.actions[0])


def test_tables_come_in_descending_predicted_cost_with_the_all_to_all():
    task, network = PlacementTask(pool_of(10), 3, 2**30), learnt().cost_network
    latents = network.encode(learnt().normaliser(task.tables))  # [T, L]
    on_first = torch.zeros(len(latents), 3, latents.shape[1])
    on_first[:, 0] = latents
    cost_ms = network.phases_ms(on_first)[:, 0].sum(dim=-1)  # [T]
    order = play(task)[0].order
    assert (cost_ms[order].diff() <= 0).all()
    alone = network.phases_ms(latents[:, None]).sum((-1, -2))
    assert not (alone[order].diff() <= 0).all(), "wide tables come earlier than by compute"


@pytest.mark.parametrize("network", [lambda: learnt().cost_network, lambda: seeded(PaperCostNetwork)])
@torch.no_grad()
def test_costs_of_a_rollout_are_those_of_the_network(network):
    task, network = PlacementTask(pool_of(20), 4, 2**30), network()
    _, taken, _, _ = play(task, times=5, network=network)
    latents = shard_latents(network, learnt().normaliser, task, task.tables)
    sums = shard_sums(latents, taken.device, 4)
    assert torch.allclose(taken.loads, sums, rtol=1e-4)
    before_last = taken.costs[:, -1]  # [B, D, 3]
    others = torch.nn.functional.one_hot(taken.actions[:, -1], 4) == 0  # devices that the last step leaves as they are
    expected = network.phases_ms(sums)[..., [0, 3]]
    assert torch.allclose(before_last[..., :2][others], expected[others], rtol=1e-3, atol=1e-5)


def test_recomputed_probabilities_are_those_that_were_sampled_with():
    draws = 6000
    _, taken, log_p, _ = play(task_of([40, 30, 20], 2, 70), times=draws)
    code = (taken.actions * torch.tensor([4, 2, 1])).sum(1)
    seen = torch.bincount(code, minlength=8) / draws
    claimed = torch.zeros(8)
    claimed[code] = log_p.sum(1).exp()
    assert float(claimed.sum()) == pytest.approx(1, abs=2e-3)
    deviation = (claimed * (1 - claimed) / draws).sqrt() + 1e-4
    assert ((seen - claimed).abs() < 5 * deviation).all()


def test_greedy_takes_the_most_probable_device_at_every_step():
    _, _, log_p, _ = play(PlacementTask(pool_of(12), 2, 2**30), greedy=True)
    assert (log_p >= math.log(0.5) - 1e-5).all()


def test_entropy_is_that_of_even_chances_first_and_zero_without_a_choice():
    _, _, log_p, entropy = play(task_of([9, 5, 4], 2, 9), times=16)  # once 9 is placed, the rest has one device
    assert entropy[:, 0].tolist() == pytest.approx([math.log(2)] * 16, rel=1e-4)
    forced = torch.isclose(log_p, torch.zeros(()), atol=1e-6)
    assert torch.equal(torch.isclose(entropy, torch.zeros(()), atol=1e-5), forced)
    assert forced.any()


def test_the_order_of_a_tasks_tables_does_not_change_where_they_go():
    pool, order = pool_of(20), torch.randperm(20, generator=torch.Generator().manual_seed(3))
    placer = PolicyPlacer(learnt())
    straight = placer.place(PlacementTask(pool, 4, 2**30)).device
    shuffled = placer.place(PlacementTask(pool.select(order), 4, 2**30)).device
    assert torch.equal(shuffled, straight[order])
