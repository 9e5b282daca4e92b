"""Episodes of the estimated MDP: legal, incremental, and with the probabilities that training uses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamshard.cost_model import PaperCostNetwork
from dreamshard.placement import Placement, device_memory_bytes
from dreamshard.policy.mdp import episodes_of, legal_devices
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.policy.rollout import log_probs, rollout
from dreamshard.tasks import PlacementTask
from tests.helpers.policy_placer import PolicyPlacer
from tests.helpers.tables import ROW_BYTES, pool_of, task_of
from tests.helpers.trained import learnt, learnt_placer

KINDS = pytest.mark.parametrize("kind", ["lookahead", "paper"])


def policy(kind, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PolicyNetwork(kind)


def episodes(task, times=1):
    return episodes_of([task], learnt().cost_network, learnt().normaliser).repeat(times)


def play(kind, task, times=1, seed=0, greedy=False):
    generator = None if greedy else torch.Generator().manual_seed(seed)
    start = episodes(task, times)
    taken = rollout(policy(kind), learnt().cost_network, start, generator, record=True)
    with torch.no_grad():
        log_p, entropy = log_probs(policy(kind), start, taken)
    return start, taken, log_p, entropy


def test_the_mask_lets_through_what_fits_to_the_last_byte():
    used, table = np.array([[4, 5, 6]], np.int64), np.array([5], np.int64)
    assert legal_devices(used, table, np.full(3, 10), np.ones(used.shape, bool)).tolist() == [[True, True, False]]


def test_where_nothing_fits_the_emptiest_device_keeps_the_softmax_defined():
    used, table = np.array([[9, 7, 8], [0, 9, 9]], np.int64), np.array([5, 5], np.int64)
    legal = legal_devices(used, table, np.full(3, 10), np.ones(used.shape, bool))
    assert legal.tolist() == [[False, True, False], [True, False, False]]


@settings(max_examples=15)
@given(rows=st.lists(st.integers(1, 50), min_size=1, max_size=12), num_devices=st.integers(1, 4), kind=st.booleans())
def test_an_episode_never_exceeds_memory_where_a_device_has_room(rows, num_devices, kind):
    room = -(-sum(rows) // num_devices) + max(rows)
    task = task_of(rows, num_devices, room)
    _, taken, _, _ = play("paper" if kind else "lookahead", task, times=8)
    assert device_memory_bytes(task.table_bytes, taken.device, num_devices).max() <= room * ROW_BYTES
    assert taken.feasible.all()


@KINDS
def test_sampling_and_loss_have_the_mask_of_the_devices_with_room(kind):
    task = task_of([5, 4, 3, 2, 1], 2, 9)
    start, taken, _, _ = play(kind, task, times=6)
    used = torch.zeros(6, 2, dtype=torch.int64)
    for t in range(5):
        fits = used + start.table_bytes[:, t, None] <= task.memory_bytes
        expected = torch.where(fits.any(1, keepdim=True), fits, used == used.min(dim=1, keepdim=True).values)
        assert torch.equal(taken.legal[:, t], expected)
        assert expected.gather(1, taken.actions[:, t, None]).all()
        used.scatter_add_(1, taken.actions[:, t, None], start.table_bytes[:, t, None])


def test_actions_come_in_the_order_of_placing_and_devices_in_the_tasks_order():
    start, taken, _, _ = play("lookahead", PlacementTask(pool_of(10), 3, 2**30))
    assert sorted(start.order[0].tolist()) == list(range(10))
    assert torch.equal(taken.device[0][start.order[0]], taken.actions[0])


def test_tables_are_placed_in_descending_order_of_their_predicted_cost_with_the_all_to_all():
    task, network = PlacementTask(pool_of(10), 3, 2**30), learnt().cost_network
    latents = network.encode(learnt().normaliser(task.tables))  # [T, L]
    on_first = torch.zeros(len(latents), 3, latents.shape[1])
    on_first[:, 0] = latents
    cost_ms = network.phases_ms(on_first)[:, 0].sum(dim=-1)  # [T]
    order = episodes(task).order[0]
    assert (cost_ms[order].diff() <= 0).all()
    alone = network.single_ms(latents)
    assert not (alone[order].diff() <= 0).all(), "wide tables come earlier than by compute"


def test_the_summed_cost_of_an_episode_is_the_prediction_recomputed_from_its_placement():
    task = PlacementTask(pool_of(20), 4, 2**30)
    _, taken, _, _ = play("lookahead", task, times=5)
    again = [float(learnt_placer().predict(task, Placement.whole(device, 4)).overall_ms()) for device in taken.device]
    assert taken.overall_ms.tolist() == pytest.approx(again, rel=1e-4)


@KINDS
def test_recomputed_probabilities_are_those_that_were_sampled_with(kind):
    draws = 6000
    _, taken, log_p, _ = play(kind, task_of([40, 30, 20], 2, 70), times=draws)
    code = (taken.actions * torch.tensor([4, 2, 1])).sum(1)
    seen = torch.bincount(code, minlength=8) / draws
    claimed = torch.zeros(8)
    claimed[code] = log_p.sum(1).exp()
    assert float(claimed.sum()) == pytest.approx(1, abs=2e-3)
    deviation = (claimed * (1 - claimed) / draws).sqrt() + 1e-4
    assert ((seen - claimed).abs() < 5 * deviation).all()


@KINDS
def test_greedy_takes_the_most_probable_device_at_every_step(kind):
    _, _, log_p, _ = play(kind, PlacementTask(pool_of(12), 2, 2**30), greedy=True)
    assert (log_p >= math.log(0.5) - 1e-5).all()


@KINDS
def test_entropy_is_that_of_even_chances_at_the_first_step_and_zero_without_a_choice(kind):
    _, _, log_p, entropy = play(kind, task_of([9, 5, 4], 2, 9), times=16)  # once 9 is placed, the rest has one device
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


@KINDS
def test_a_policy_sees_costs_of_an_untrained_network_in_their_own_size(kind):
    """A sum of single costs near 0, which untrained networks predict, must not scale a policy's inputs a million times."""
    task = PlacementTask(pool_of(20), 4, 2**30)
    for seed in range(6):
        torch.manual_seed(seed)
        network = PaperCostNetwork()
        start = episodes_of([task], network, learnt().normaliser)
        taken = rollout(policy(kind), network, start, torch.Generator().manual_seed(0), record=True)
        with torch.no_grad():
            largest_ms = float(network.phases_ms(torch.zeros(1, network.latent_size)).abs().max())
        assert float(taken.view.costs.abs().max()) < 100 * max(largest_ms, 1)
