import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamshard.costs import Infeasible
from dreamshard.tables import Placement
from dreamshard.testbeds.rounds import Steadiness, least, measure_in_rounds
from tests.helpers.samples import sample_of
from tests.helpers.tables import task_of

TASK = task_of([1, 1], 2, 2, name="one")
MISFIT = Infeasible(device=0, asked_bytes=6, free_bytes=5)


def sample(ms, device=(0, 1), **facts):
    return sample_of(TASK, Placement.whole(device, 2), [ms, 0.0], **{"hardware": "Xeon", **facts})


@pytest.mark.parametrize(
    ("series", "are_compared", "counts"),
    [
        ([(10, 10.1)], True, [2]),
        ([(10, 10.1, 12), (14, 12, 12.1)], True, [3, 3]),
        ([(10, 10.1), (14, 12, 12.1)], False, [2, 3]),
        ([(14, 12, 10)], True, [3]),
        ([(10, np.inf, 10.2)], True, [3]),
        ([(np.inf, np.inf)], True, [2]),
    ],
)
def test_rounds_end_when_the_two_lowest_of_all_that_are_compared_agree(series, are_compared, counts):
    def cost(ms):
        return sample(ms) if np.isfinite(ms) else sample(1.0, infeasible=MISFIT)

    measures = [lambda number, costs=costs: cost(costs[number]) for costs in series]
    nothing = [[] for _ in series]
    rounds = measure_in_rounds(measures, nothing, torch.Generator(), are_compared=are_compared)
    assert [len(one_round) for one_round in rounds] == counts
    least_ms = [min(costs[:count]) for costs, count in zip(series, counts, strict=True)]
    assert [least(one_round).overall_ms for one_round in rounds] == least_ms


def test_computed_costs_need_one_round_and_a_resumed_run_only_what_is_missing():
    one = measure_in_rounds([lambda _: sample(1.0, hardware="simulated a100")], [[]], torch.Generator())
    assert len(one[0]) == 1
    order = []

    def measure(k, number):
        order.append((number, k))
        return sample(10.0)

    measures, known = [partial(measure, k) for k in (0, 1)], [[sample(10.1)], []]
    rounds = measure_in_rounds(measures, known, torch.Generator())
    assert order == [(0, 1), *[step for step in order[1:] if step[0] == 1]]
    assert [len(one_round) for one_round in rounds] == [2, 2]


def test_recorded_bursts_hardly_move_the_cost_that_counts():
    series = np.array(
        json.loads(Path(__file__).with_name("bursts.json").read_text())
    )  # one placement, 463 times in a row
    generator, costs = np.random.default_rng(0), []
    for _ in range(500):
        drawn = generator.permutation(series)
        (rounds,) = measure_in_rounds([lambda number, drawn=drawn: sample(drawn[number])], [[]], torch.Generator())
        costs.append(least(rounds).overall_ms)
    assert series.std() / series.mean() == pytest.approx(0.078, abs=0.002)
    assert np.std(costs) / np.mean(costs) < 0.03


def test_a_reference_placement_and_disturbed_rounds_show_how_steady_a_machine_was():
    reference = [sample(ms, is_reference=True, repeat=repeat) for repeat, ms in enumerate([10.0, 11.0, 12.0])]
    rounds = [*reference, *map(sample, (20.0, 30.0, 21.0)), sample(1.0, infeasible=MISFIT)]
    steadiness = Steadiness.of(rounds)
    assert (steadiness.rounds, steadiness.disturbed, steadiness.level_ms) == (6, pytest.approx(1 / 6), 11.0)
    assert steadiness.spread == pytest.approx(np.std([10, 11, 12]) / 11)
    assert steadiness.noise() == pytest.approx(1 - 1 / (1 + 2 * steadiness.spread))
    assert [Steadiness.of(reference[:1]).noise(level) for level in (None, 1.05, 2.0, 0.5)] == [0, 0, 0.5, 0.5]
    assert Steadiness.of(rounds[3:]).noise() == pytest.approx(1 - 1 / (1 + 0.55 / 3)), "its rounds differ"
