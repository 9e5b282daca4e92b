"""From costs to a placement: by a trained network, and by a preset's roofline with nothing trained."""

from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placer import NoPlacementError
from dreamshard.search import GreedyCostPlacer, RooflinePlacer
from dreamshard.search.baselines import baselines
from dreamshard.search.search import search
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt, learnt_placer, make_placer

UNHURRIED_MS = 50.0
PRIOR = RooflinePlacer(PRESETS["a100"])


def starts(task):
    state = learnt()
    placers = [replace(make_placer(state), inference="policy")]
    placers += [GreedyCostPlacer(state.cost_network, state.normaliser), *baselines().values()]
    for placer in placers:
        try:
            yield placer.place(task)
        except NoPlacementError:
            continue


@pytest.mark.parametrize("budget_ms", [0.0, 5.0, UNHURRIED_MS])
@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.slow
def test_the_result_is_never_predicted_to_be_worse_than_a_start(num_devices, budget_ms):
    placer = learnt_placer()
    for seed in range(3):
        task = PlacementTask(pool_of(14, seed), num_devices, 2**33)
        cost_ms = float(placer.predict(task, placer.place(task, budget_ms)).overall_ms())
        assert cost_ms <= min(float(placer.predict(task, start).overall_ms()) for start in starts(task)) * (1 + 1e-5)


def test_local_search_finds_the_even_split_that_no_start_has():
    task = PlacementTask(pool_of(30, 4), 4, 2**33)
    placer = learnt_placer()
    hurried, unhurried = (
        float(placer.predict(task, placer.place(task, ms)).overall_ms()) for ms in (0.0, UNHURRIED_MS)
    )
    assert unhurried < 0.999 * hurried


def test_a_budget_is_a_number_of_changes():
    placer, task = learnt_placer(), PlacementTask(pool_of(40), 4, 2**33)
    assert placer.moves(task, 50.0) == 10 * placer.moves(task, 5.0) != placer.moves(task)
    assert replace(placer, budget_ms=5.0).moves(task) == placer.moves(task, 5.0)


def test_a_late_search_ends_with_the_best_so_far():
    task, costs_ms = PlacementTask(pool_of(40), 8, 2**33, constraints=ANY_SHARDING), []
    for looks in (0, 20, 10**6):
        late = chain(repeat(False, looks), repeat(True))
        placement = search(task, PRIOR.costs(task), 20_000, is_late=partial(next, late))
        assert not violation(task, placement)
        costs_ms.append(float(PRIOR.predict(task, placement).overall_ms()))
    assert costs_ms[0] > costs_ms[1] > costs_ms[2]


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
