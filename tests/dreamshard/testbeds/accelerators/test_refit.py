"""A spec is found again from costs that it made."""

from dataclasses import replace

import pytest
import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.task_sampling import sample_tasks
from dreamshard.testbeds.accelerators.refit import FIGURES, refit
from dreamshard.testbeds.accelerators.specs import H200
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.samples import sample_of
from tests.helpers.tables import pool_of, task_of


def samples(spec, count: int = 60, noise: float = 0.01) -> list[CostSample]:
    setup = TestbedSetup(num_devices=4, batch_size=65_536, lookups=lambda name: pytest.fail(name))
    bed = SimulatedTestbed(setup, spec, noise)
    generator = torch.Generator().manual_seed(0)
    tasks = sample_tasks(pool_of(200), count, [4, 12, 40], 4, 2**40, generator, precision="fp16")
    return [
        bed.measure(task, Placement(torch.randint(4, (len(task.tables),), generator=generator), 4)) for task in tasks
    ]


def test_perturbed_figures_are_recovered_and_the_error_falls_to_the_noise():
    true = replace(H200, memory_bytes_per_s=0.6 * H200.memory_bytes_per_s, launch_s=2.5 * H200.launch_s)
    found = refit(H200, samples(true))
    assert found.before_mape > 0.15
    assert found.after_mape < 0.015
    assert found.scales["memory_bytes_per_s"] == pytest.approx(0.6, rel=0.1)
    assert found.scales["launch_s"] == pytest.approx(2.5, rel=0.1)
    assert found.spec.link_bytes_per_s == H200.link_bytes_per_s
    assert f"error {found.before_mape:.1%} before, {found.after_mape:.1%} after" in str(found)


def test_figures_that_are_right_stay():
    found = refit(H200, samples(H200, noise=0.0))
    assert found.after_mape <= found.before_mape < 1e-4
    assert set(found.scales) == set(FIGURES)
    assert found.scales["memory_bytes_per_s"] == pytest.approx(1, rel=0.01)


def test_a_few_wild_measurements_do_not_bend_the_fit():
    true = replace(H200, memory_bytes_per_s=0.6 * H200.memory_bytes_per_s)
    good = samples(true)
    wild = [replace(s, costs=replace(s.costs, forward_compute_ms=20 * s.costs.forward_compute_ms)) for s in good[:3]]
    assert refit(H200, [*wild, *good[3:]]).scales["memory_bytes_per_s"] == pytest.approx(0.6, rel=0.1)


def test_samples_of_several_batches_or_none_are_refused():
    sample = sample_of(task_of([1], 1, 10), Placement(torch.tensor([0]), 1), [1.0])
    with pytest.raises(ValueError, match=r"batches \[1024, 2048\] cannot be fitted together"):
        refit(H200, [sample, replace(sample, batch_size=2048)])
    with pytest.raises(ValueError, match="0 samples"):
        refit(H200, [])
