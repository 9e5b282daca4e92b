"""From costs to a placement: by a trained network, and by a preset's roofline with nothing trained."""

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.search.baselines import baselines
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt_placer

UNHURRIED_MS = 50.0
PRIOR = RooflinePlacer(PRESETS["a100"])


def test_local_search_finds_the_even_split_that_no_start_has():
    task = PlacementTask(pool_of(30, 4), 4, 2**33)
    placer = learnt_placer()
    hurried, unhurried = (
        float(placer.predict(task, placer.place(task, ms)).overall_ms()) for ms in (0.0, UNHURRIED_MS)
    )
    assert unhurried < 0.999 * hurried


def true_ms(task, placement, batch_size=65_536):
    setup = TestbedSetup(num_devices=task.num_devices, batch_size=batch_size, lookups=lambda name: pytest.fail(name))
    return SimulatedTestbed(setup, PRESETS["a100"], noise=0.0).measure(task, placement)


@pytest.mark.parametrize("constraints", [UNCONSTRAINED, ANY_SHARDING], ids=["whole", "every sharding type"])
@pytest.mark.parametrize("batch_size", [65_536, 1024])
def test_a_preset_predicts_what_the_simulated_testbed_measures(constraints, batch_size):
    task = PlacementTask(
        pool_of(20), 16, 2**40, "fp16", "rowwise_adagrad", devices_per_host=4, batch_size=batch_size,
        constraints=constraints,
    )  # fmt: skip
    placement = PRIOR.place(task)
    measured = true_ms(task, placement, batch_size).costs.phases_ms
    assert torch.allclose(PRIOR.predict(task, placement).phases_ms.float(), measured, rtol=1e-4)


@pytest.mark.parametrize("num_devices", [2, 4, 12])
def test_a_preset_beats_every_rule_on_average_and_never_loses(num_devices):
    ratios = []
    for seed in range(4):
        task = PlacementTask(pool_of(30, seed), num_devices, 2**33)
        prior_ms = true_ms(task, PRIOR.place(task)).overall_ms
        best = min(true_ms(task, placer.place(task)).overall_ms for placer in baselines().values())
        assert prior_ms <= best * (1 + 1e-5)
        ratios.append(prior_ms / best)
    assert sum(ratios) / len(ratios) < 0.99
