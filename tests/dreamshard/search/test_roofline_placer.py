"""Placing by a preset's roofline, with nothing trained."""

from dataclasses import replace

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placer import Placer
from dreamshard.search import RooflinePlacer
from dreamshard.search.baselines import baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.tables import pool_of

A100 = PRESETS["a100"]

PRIOR = RooflinePlacer(A100)


def true_ms(task, placement, spec=A100, batch_size=65_536):
    setup = TestbedSetup(num_devices=task.num_devices, batch_size=batch_size, lookups=lambda name: pytest.fail(name))
    return SimulatedTestbed(setup, spec, noise=0.0).measure(task, placement)


def test_it_predicts_what_the_simulated_testbed_measures():
    task = PlacementTask(pool_of(20), 16, 2**40, "fp16", "rowwise_adagrad", devices_per_host=4)
    placement = PRIOR.place(task)
    measured = true_ms(task, placement)
    assert torch.allclose(PRIOR.predict(task, placement).phases_ms().float(), measured.costs.phases_ms(), rtol=1e-4)
    other = replace(task, batch_size=1024)
    assert float(PRIOR.predict(other, placement).overall_ms()) == pytest.approx(
        true_ms(task, placement, batch_size=1024).overall_ms, rel=1e-4
    )


@pytest.mark.parametrize("num_devices", [2, 4, 12])
def test_it_is_never_worse_than_a_rule_of_thumb_and_better_than_all_on_the_mean(num_devices):
    ratios = []
    for seed in range(4):
        task = PlacementTask(pool_of(30, seed), num_devices, 2**33)
        own = true_ms(task, PRIOR.place(task)).overall_ms
        best = min(true_ms(task, placer.place(task)).overall_ms for placer in baselines().values())
        assert own <= best * (1 + 1e-5)
        ratios.append(own / best)
    assert sum(ratios) / len(ratios) < 0.99


def test_a_table_larger_than_a_device_is_split():
    tables = replace(pool_of(6), dim=torch.full((6,), 64), rows=torch.tensor([10**6, 10, 10, 10, 10, 10]))
    task = PlacementTask(tables, 4, 10**6 * 64 * 4 // 2)
    placement = PRIOR.place(task)
    assert not placement.is_whole
    assert not violation(task, placement)
    assert isinstance(PRIOR, Placer)
