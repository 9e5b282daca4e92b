"""Learning on a testbed whose laws the project does not know."""

from functools import cache

import pytest

from dreamshard.baselines import RULES_OF_THUMB, baselines
from dreamshard.search import DreamShardPlacer
from dreamshard.testbeds import open_testbed
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.training import TrainingConfig, fit_costs, improve_policy, make_placer, propose, start_training
from tests.benchmarks.pools import TRAINED, Size, pools, tasks
from tests.helpers.unseen_testbed import annealed_ms, true_ms

pytestmark = pytest.mark.slow


def no_lookups(name):
    raise AssertionError(f"{name} is not looked up here")


@cache
def learnt() -> DreamShardPlacer:
    """A placer trained on 100 placements of 50 tables on 4 devices."""
    pool, _ = pools("mixed")
    setup = TestbedSetup(num_devices=4, batch_size=65_536, lookups=no_lookups)
    testbed = open_testbed("tests.helpers.unseen_testbed:make", setup)
    state, drawn, samples = start_training(pool, TrainingConfig(), seed=0), tasks(pool, TRAINED, 50, seed=5), []
    for _ in range(state.config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, drawn)]
        fit_costs(state, samples)
        improve_policy(state, drawn)
    assert len(samples) == 100
    return make_placer(state)


def cost_over_annealing(size: Size) -> tuple[float, float]:
    """Cost of dreamshard and of the best rule of thumb, each over annealing's, on unseen tables."""
    drawn = tasks(pools("mixed")[1], size, 3, seed=200)
    least = sum(annealed_ms(task, 3000) for task in drawn)
    placements = [learnt().place(task, budget_ms=2000.0) for task in drawn]
    assert all(task.is_legal(placement) for task, placement in zip(drawn, placements, strict=True))
    ours = sum(true_ms(task, placement) for task, placement in zip(drawn, placements, strict=True))
    rules = [sum(true_ms(task, baselines()[rule].place(task)) for task in drawn) for rule in RULES_OF_THUMB]
    return ours / least, min(rules) / least


def test_placements_come_within_three_percent_of_long_annealing_on_the_true_costs():
    ours, rule = cost_over_annealing(TRAINED)
    assert ours <= 1.03
    assert ours < rule


def test_they_do_so_at_sizes_never_trained_on():
    for size in (Size(20, 4), Size(100, 8)):
        ours, rule = cost_over_annealing(size)
        assert ours <= 1.03
        assert ours < rule
