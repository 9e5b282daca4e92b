"""The quality reference: long annealing on the true costs of the simulated testbed."""

import itertools

import pytest
import torch

from dreamshard.baselines import baselines
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from tests.benchmarks.annealing import anneal, true_ms
from tests.benchmarks.pools import TRAINED, Size, pools, tasks
from tests.helpers.testbeds import simulated

BED = simulated(noise=0.0)


def test_on_a_task_small_enough_to_try_everything_it_finds_the_best():
    task = tasks(pools("mixed")[1], Size(7, 2), 1, seed=0)[0]
    every = torch.tensor(list(itertools.product(range(2), repeat=7)))
    legal = torch.tensor([task.is_legal(Placement(device, 2)) for device in every])
    costs = BED.device_costs(task.tables, every[legal], 2, task.precision, task.optimizer).overall_ms()
    assert anneal(BED, task, steps=200).overall_ms == pytest.approx(float(costs.min()))


@pytest.mark.parametrize("memory", ["generous", "tight"])
def test_it_ends_legal_and_below_every_rule_of_thumb(memory):
    task = tasks(pools("mixed")[1], TRAINED, 1, seed=3, memory=memory)[0]
    found = anneal(BED, task, steps=150)
    assert task.is_legal(found.placement)
    assert found.overall_ms == true_ms(BED, task, found.placement)
    for placer in baselines().values():
        assert found.overall_ms < true_ms(BED, task, placer.place(task))


@pytest.mark.slow
def test_ten_times_the_steps_gain_less_than_half_a_percent():
    task = tasks(pools("dim16")[1], TRAINED, 2, seed=1)[1]
    short, long = (anneal(BED, task, steps=steps, chains=8, candidates=16).overall_ms for steps in (400, 4000))
    assert short < 1.005 * long


def test_a_better_start_is_never_lost():
    task = tasks(pools("dim16")[1], Size(20, 4), 1, seed=0)[0]
    good = anneal(BED, task, steps=200)
    assert anneal(BED, task, steps=1, start=good.placement).overall_ms <= good.overall_ms


def test_a_single_device_leaves_nothing_to_choose():
    task = tasks(pools("dim16")[1], Size(5, 1), 1, seed=0)[0]
    assert anneal(BED, PlacementTask(task.tables, 1, task.memory_bytes, "fp16"), steps=3).placement.device.sum() == 0
