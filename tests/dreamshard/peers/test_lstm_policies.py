"""The rival that is trained on predicted costs: what it optimises, what it learns, and that seeds decide it."""

import pytest
import torch

from dreamshard.cost_model import shard_sums
from dreamshard.peers import (
    FITTED,
    LEARNED,
    MEASURING,
    PeerTraining,
    TrainedPerTask,
    installed_peers,
    peer,
    trained_peer,
)
from dreamshard.peers.encoder_decoder import RNN_PREDICTED
from dreamshard.peers.lstm_policies import lstm_rollout
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.policy.mdp import episodes_of
from dreamshard.tasks import PlacementTask
from tests.dreamshard.peers.plain_network import plain
from tests.helpers.tables import pool_of, tables_of, task_of
from tests.helpers.trained import learnt, learnt_placer, tiny_tasks

SHORT = PeerTraining(updates=3, episodes=4)
LONG = PeerTraining(updates=50, episodes=16)
EACH = pytest.mark.parametrize("name", LEARNED)
METHODS = {"rnn_predicted": RNN_PREDICTED}


def untrained(name, num_devices=2, seed=0):
    return METHODS[name].untrained(learnt().cost_network, learnt().normaliser, num_devices, seed)


@torch.no_grad()
def judged(name, placer, tasks):
    """Mean of what the rival optimises, over its greedy placements."""
    network, normaliser = learnt().cost_network, learnt().normaliser
    total = 0.0
    for task in tasks:
        latents = network.encode(normaliser(task.tables))
        sums = shard_sums(latents, placer.place(task).device[None], task.num_devices)
        total += float(METHODS[name].objective(network, sums)[0])
    return total / len(tasks)


@EACH
def test_training_improves_on_the_untrained_self(name):
    tasks = tiny_tasks()
    trained = trained_peer(name, learnt_placer(), tasks, 0, LONG)
    assert judged(name, trained, tasks) < 0.95 * judged(name, untrained(name), tasks)


@torch.no_grad()
def test_the_rnn_sees_communication():
    tables = tables_of([100, 100], [64, 4], 1.0)
    free, normaliser = plain(tables)
    expensive, _ = plain(tables, ms_per_widest_hundred_dims=10.0)
    sums = shard_sums(free.encode(normaliser(tables)), torch.tensor([[0, 1]]), 2)
    compute = 2 * 0.64  # forward and backward of pooling x dim = 64
    assert float(RNN_PREDICTED.objective(free, sums)) == pytest.approx(compute, rel=2e-3)
    both_ways = 2 * 10.0 * 0.64 / 2  # half of the 64 dims leave the device
    assert float(RNN_PREDICTED.objective(expensive, sums)) == pytest.approx(compute + both_ways, rel=2e-3)


@EACH
def test_the_same_seed_gives_the_same_placer_and_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    first, second, other = (trained_peer(name, learnt_placer(), tiny_tasks(), seed, SHORT) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [torch.cat([each.flatten() for each in placer.policy.parameters()]) for placer in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    task = PlacementTask(pool_of(10, 3), 2, 2**30)
    assert torch.equal(first.place(task).device, second.place(task).device)


@EACH
def test_sampled_placements_stay_within_memory_wherever_they_say_so(name):
    task = task_of([5, 4, 4, 3, 3, 2, 1], 2, 12)
    placer = untrained(name)
    episodes = episodes_of([task], placer.cost_network, placer.normaliser).repeat(64)
    with torch.no_grad():
        taken = lstm_rollout(placer.policy, episodes, torch.Generator().manual_seed(0), placer.cost_network.evaluator())
    rows = task.tables.rows.expand(64, -1)
    held = torch.stack([(rows * (taken.device == device)).sum(1) for device in range(2)], dim=1)
    assert torch.equal((held <= 12).all(1), taken.feasible)
    assert taken.feasible.any()
    assert len(taken.device.unique(dim=0)) > 1


@EACH
def test_probabilities_of_choices_are_those_of_a_uniform_policy_where_all_weights_are_zero(name):
    placer = untrained(name)
    with torch.no_grad():
        for parameter in placer.policy.parameters():
            parameter.zero_()
    episodes = episodes_of([task_of([1, 1, 1], 2, 2)], placer.cost_network, placer.normaliser).repeat(32)
    taken = lstm_rollout(placer.policy, episodes, torch.Generator().manual_seed(0), placer.cost_network.evaluator())
    together = taken.device[:, episodes.order[0, 0]] == taken.device[:, episodes.order[0, 1]]
    half = torch.tensor(0.5).log()
    assert torch.allclose(taken.log_prob[:, :2], half.expand(32, 2))
    forced = torch.where(together, torch.tensor(0.0), half)  # a full device leaves one choice
    assert torch.allclose(taken.log_prob[:, 2], forced, atol=1e-6)
    assert torch.allclose(taken.entropy[:, 2], -forced, atol=1e-6)


@EACH
def test_greedy_placements_are_legal_packed_where_memory_is_tight_and_refused_where_there_is_none(name):
    roomy, tight = task_of([5, 4, 3, 2, 1, 1], 2, 12), task_of([3, 3, 2, 2, 2], 2, 6)
    assert roomy.is_legal(untrained(name).place(roomy))
    assert tight.is_legal(untrained(name).place(tight))
    with pytest.raises(NoPlacementError):
        untrained(name).place(task_of([3, 3, 3], 2, 5))


def test_the_rnn_has_one_output_per_device():
    task = task_of([2, 2, 2, 2], 4, 8)
    with pytest.raises(NoPlacementError, match="trained for 2 devices"):
        untrained("rnn_predicted").place(task)
    with pytest.raises(ValueError, match=r"one number of devices; got \[2, 4\]"):
        trained_peer("rnn_predicted", learnt_placer(), [*tiny_tasks(), task], 0, SHORT)


@EACH
def test_a_rival_is_not_trained_on_nothing(name):
    with pytest.raises(ValueError, match=f"no tasks to train {name} on"):
        trained_peer(name, learnt_placer(), [], 0, SHORT)


def test_every_rival_has_its_own_name_and_one_without_training_tasks_trains_anew_for_each_task():
    needs_nothing_measured = [name for name in installed_peers() if name not in (MEASURING, *FITTED)]
    rivals = {name: peer(name, learnt_placer(), 0, SHORT) for name in needs_nothing_measured}
    rivals |= {f"{name}, trained": trained_peer(name, learnt_placer(), tiny_tasks(), 0, SHORT) for name in LEARNED}
    assert all(placer.name == name.partition(",")[0] and isinstance(placer, Placer) for name, placer in rivals.items())
    task = tiny_tasks(num_devices=3)[0]  # trained anew, so three devices will do
    assert isinstance(rivals["rnn_predicted"], TrainedPerTask)
    assert task.is_legal(rivals["rnn_predicted"].place(task))


def test_a_rival_that_is_unknown_or_lacks_a_cost_network_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no rival 'rnnn'.*'torchrec_planner'"):
        peer("rnnn", learnt_placer())
    with pytest.raises(ValueError, match="neuroshard_predicted places by a trained cost network"):
        peer("neuroshard_predicted", None)
    assert peer("torchrec_planner", None).name == "torchrec_planner"


def test_training_figures_that_train_nothing_are_refused():
    with pytest.raises(ValueError, match="episodes is 0"):
        PeerTraining(episodes=0)
