"""Placers from few profiles: which plan they make, how sure its saving is, and how the prior fades."""

from dataclasses import replace

import pytest
import torch

from dreamshard.costs import TRACED, DeviceCosts
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.search.packing import GreedyPlacer, RandomPlacer
from dreamshard.traces import heldout_error, learn
from tests.helpers.tables import pool_of, roomy_task
from tests.helpers.testbeds import simulated

TASK = replace(roomy_task(pool_of(24), 4), batch_size=65_536)
CURRENT = GreedyPlacer("size_greedy").place(TASK)


def profile(placement, seen=(0, 1, 2, 3), noise=0.02):
    """As a job of simulated GPUs would be profiled on some ranks."""
    sample = simulated(noise).measure(TASK, placement)
    is_seen = torch.isin(torch.arange(4), torch.tensor(seen))[:, None]
    return replace(sample, testbed=TRACED, costs=DeviceCosts(torch.where(is_seen, sample.costs.phases_ms, torch.nan)))


def true_ms(placement):
    return float(simulated(0.0).measure(TASK, placement).overall_ms)


def test_one_profile_of_some_ranks_makes_a_cheaper_plan_and_says_how_sure_it_is():
    sample = profile(CURRENT, seen=(0, 2, 3))
    learned = learn([sample], PRESETS["v100"])
    planned = learned.placer.place(TASK)
    saving, true = learned.saving(TASK, CURRENT, planned), 1 - true_ms(planned) / true_ms(CURRENT)
    assert true > 0.02
    assert saving.low <= true <= saving.high
    assert saving.of_ms == pytest.approx(true_ms(CURRENT), rel=0.2)
    assert 0 <= heldout_error([sample], PRESETS["v100"]) < 0.5


def test_a_second_profile_makes_the_saving_surer():
    samples = [profile(CURRENT)]
    learned = [learn(samples, PRESETS["v100"])]
    samples.append(profile(learned[0].placer.place(TASK)))
    learned.append(learn(samples, PRESETS["v100"]))
    planned = learned[1].placer.place(TASK)
    first, second = (learner.saving(TASK, CURRENT, planned) for learner in learned)
    assert second.high - second.low < first.high - first.low


def test_with_very_many_samples_the_prior_does_not_matter():
    samples = [profile(RandomPlacer(seed).place(TASK)) for seed in range(60)]
    unseen = [RandomPlacer(seed).place(TASK) for seed in range(100, 110)]
    networks = [learn(samples, PRESETS[name], refits=0).placer for name in ("v100", "h100")]
    one, other = (
        torch.cat([network.predict(TASK, placement).device_ms() for placement in unseen]).tolist()
        for network in networks
    )
    assert one == pytest.approx(other, rel=0.02)
    assert max(one) > 1.01 * min(one)


def test_a_plan_is_as_good_as_that_of_the_hardware_itself_after_two_profiles():
    samples = [profile(CURRENT)]
    samples.append(profile(learn(samples, PRESETS["v100"], refits=0).placer.place(TASK)))
    planned = learn(samples, PRESETS["v100"], refits=0).placer.place(TASK)
    assert true_ms(planned) <= 1.1 * true_ms(RooflinePlacer(PRESETS["rtx2080ti"]).place(TASK))
