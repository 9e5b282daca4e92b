"""Local search by the paper's overall head."""

from dataclasses import replace
from itertools import product

import numpy as np
import torch

from dreamshard.baselines import RandomPlacer
from dreamshard.cost_model import Normaliser, predict_ms, shard_sums
from dreamshard.search import DreamShardPlacer
from dreamshard.search.overall_climber import OverallClimber
from dreamshard.tasks import PlacementTask
from tests.helpers.published_dreamshard import ours, random_weights
from tests.helpers.tables import pool_of

TASK = PlacementTask(pool_of(8), 3, 2**33)
NORMALISER = Normaliser.fit(TASK.tables)


def climber(network, device, task=TASK):
    latents = network.encode(NORMALISER(task.tables)).numpy()
    room = np.asarray(task.memory_bytes)
    return OverallClimber(network.evaluator(), latents, task.table_bytes.numpy(), room, task.num_devices, device)


def overall_ms(network, device):
    latents = network.encode(NORMALISER(TASK.tables))
    return predict_ms(network, latents, torch.from_numpy(np.atleast_2d(device)), TASK.num_devices).numpy()


@torch.no_grad()
def test_every_step_lowers_the_overall_head_which_the_climber_knows_at_every_step():
    for seed in range(4):
        network, _ = ours(random_weights(seed))
        found = climber(network, np.arange(8) % 3)
        before = np.inf
        while True:
            assert found.overall_ms < before
            np.testing.assert_allclose(found.overall_ms, overall_ms(network, found.device)[0], rtol=1e-3)
            before = found.overall_ms
            if not (found.step(widest=False) or found.step(widest=True)):
                break


@torch.no_grad()
def test_where_it_stops_no_move_and_no_swap_off_the_critical_device_is_better():
    network, _ = ours(random_weights(1))
    found = climber(network, np.zeros(8, np.int64))
    while found.step(widest=False):
        pass
    source = found._critical(found.overall.device_latents(found.sums), 0)
    neighbours = []
    for table, target in product(np.flatnonzero(found.device == source), range(3)):
        neighbours.append(np.where(np.arange(8) == table, target, found.device))
        for back in np.flatnonzero(found.device == target):
            swapped = found.device.copy()
            swapped[table], swapped[back] = target, source
            neighbours.append(swapped)
    assert overall_ms(network, np.stack(neighbours)).min() >= found.overall_ms * (1 - 2e-4)


@torch.no_grad()
def test_steps_stay_within_the_memory_of_the_devices():
    table_bytes = TASK.table_bytes.numpy()
    room = max(int(table_bytes.sum()) * 2 // 3, int(table_bytes.max()))
    tight = replace(TASK, memory_bytes=room)
    steps = 0
    for seed in range(4):
        network, _ = ours(random_weights(seed))
        found = climber(network, RandomPlacer(seed).place(tight).device.numpy(), tight)
        while found.step(widest=False) or found.step(widest=True):
            steps += 1
            assert np.bincount(found.device, weights=table_bytes, minlength=3).max() <= room
    assert steps


@torch.no_grad()
def test_the_search_with_the_papers_network_ends_near_the_least_overall_head_of_all_placements():
    every = np.asarray(list(product(range(3), repeat=8)))
    for seed in range(3):
        network, policy = ours(random_weights(seed))
        placer = DreamShardPlacer(network, policy, NORMALISER, columns=False)
        costs = overall_ms(network, every)
        found = placer.predict_overall_ms(TASK, placer.place(TASK))
        assert (costs < found - 1e-3 * np.ptp(costs)).mean() < 0.001  # among the best of 6,561


@torch.no_grad()
def test_the_cost_of_placing_a_table_is_the_overall_head_with_it_on_each_device():
    network, _ = ours(random_weights(2))
    latents = network.encode(NORMALISER(TASK.tables))
    for num_devices in (1, 2, 3):
        sums = shard_sums(latents[:5], torch.arange(5)[None] % max(num_devices - 1, 1), num_devices)  # one may be empty
        found = network.evaluator().overall_with_table(sums.numpy(), latents[5:6].numpy())[0]
        for device in range(num_devices):
            with_table = sums.clone()
            with_table[0, device] += latents[5]
            np.testing.assert_allclose(found[device], float(network.overall_ms(with_table)[0]), rtol=1e-4)
