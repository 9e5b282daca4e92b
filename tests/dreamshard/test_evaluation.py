import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.evaluation import (
    TABLES_SHARE,
    EvaluationRow,
    PairedComparison,
    best_baseline,
    evaluate,
    mean_error,
    paired_comparison,
    prediction_error,
)
from dreamshard.tables import Placement
from dreamshard.tasks import NoPlacementError, PlacementTask
from tests.helpers.samples import sample_of
from tests.helpers.tables import ROW_BYTES, tables_of, task_of


@dataclass(frozen=True)
class Fixed:
    """Always the same placement; no room without one."""

    name: str
    device: tuple[int, ...] = ()

    def place(self, task, budget_ms=None):
        if not self.device and task.name == "two":
            raise NoPlacementError(f"no room for {task.name}")
        return Placement.whole(self.device or (0, 1), task.num_devices)


class Recorder:
    """Measures nothing: the n-th measurement costs 2 ** n milliseconds, the first round of each placement the least."""

    def __init__(self):
        self.order = []
        self.references = 0

    def __call__(self, task, placement, number, *, reference):
        self.references += reference > 0
        self.order.append((task.name, tuple(placement.device.tolist())))
        return sample_of(task, placement, [2.0 ** len(self.order), 0.0], hardware="Xeon")


TASKS = [task_of([1, 1], 2, 1, name="one"), task_of([1, 1], 2, 1, name="two")]
SIX = [task_of([1, 1], 2, 1, name=f"task-{n}") for n in range(6)]
PLACERS = {"left": Fixed("left", (0, 1)), "right": Fixed("right", (1, 0))}


def run(measure, placers=PLACERS, tasks=TASKS, seed=0, **options):
    """An evaluation in which 7 ms are predicted of every placement."""
    costs = DeviceCosts(torch.tensor([[7.0, 0.0, 0.0, 0.0]]))
    return evaluate(placers, tasks, measure, predict=lambda *_: costs, seed=seed, **options)


def row(placer, task, overall_ms, predicted_ms=1.0, device=(0, 1), tables=None, dim=4):
    """One placer on the task of that name, whose two tables are named after it unless `tables` names them."""
    of = PlacementTask(tables_of([1, 1], dim, names=tables or (f"{task}0", f"{task}1")), 2, 2 * ROW_BYTES, name=task)
    costs = DeviceCosts(torch.zeros(2, 4))
    return EvaluationRow(placer, of, Placement.whole(device, 2), overall_ms, predicted_ms, 1.0, costs)


def test_the_placements_of_a_task_are_measured_next_to_each_other():
    first, again, other = Recorder(), Recorder(), Recorder()
    for measure, seed in ((first, 0), (again, 0), (other, 1)):
        run(measure, tasks=SIX, seed=seed)
    rounds = [tuple(first.order[i : i + 2]) for i in range(0, 36, 2)]
    assert [{task for task, _ in one_round} for one_round in rounds] == [{task.name} for task in SIX for _ in range(3)]
    assert all({device for _, device in one_round} == {(0, 1), (1, 0)} for one_round in rounds)
    assert len({tuple(device for _, device in one_round) for one_round in rounds}) > 1
    assert first.order == again.order != other.order


def test_a_row_holds_the_least_round_and_the_prediction():
    measure = Recorder()
    rows = run(measure)
    assert [(row.placer, row.task.name) for row in rows] == [(p, t) for t in ("one", "two") for p in PLACERS]
    for line in rows:
        key = (line.task.name, tuple(line.placement.device.tolist()))
        measured = [2.0 ** (n + 1) for n, seen in enumerate(measure.order) if seen == key]
        assert line.overall_ms == measured[0], "the first of three rounds"
        assert float(line.costs.phases_ms[0, 0]) == measured[0]
        assert (line.predicted_ms, line.fits) == (7.0, True)


def test_placers_that_agree_share_a_measurement_and_a_reference_is_measured_too():
    measure, placers = Recorder(), {**PLACERS, "same": Fixed("same", (0, 1))}
    by_name = {row.placer: row.overall_ms for row in run(measure, placers) if row.task.name == "one"}
    assert len(measure.order) == 12
    assert by_name["same"] == by_name["left"]
    run(measure, tasks=SIX * 2, reference=(TASKS[0], Placement.whole((0, 0), 2)))
    assert measure.references == 3 * 3, "with groups 0, 5 and 10, three rounds each"


@pytest.mark.parametrize(
    ("placers", "error"),
    [({"other": Fixed("no room")}, NoPlacementError), ({**PLACERS, "other": Fixed("both on one", (0, 0))}, ValueError)],
)
def test_measuring_starts_after_every_placer_placed_every_task(placers, error):
    measure = Recorder()
    with pytest.raises(error):
        run(measure, placers=placers)
    assert measure.order == []


def test_a_placer_without_room_fails_on_that_task_or_is_left_out():
    placers = {**PLACERS, "other": Fixed("no room")}
    rows = run(Recorder(), placers)
    fits = {row.task.name: (row.fits, row.placement is None) for row in rows if row.placer == "other"}
    assert fits == {"one": (True, False), "two": (False, True)}
    assert not paired_comparison(rows, "other", "left").fits
    assert prediction_error(rows) > 0
    assert {row.placer for row in run(Recorder(), placers, optional=["other"])} == PLACERS.keys()


def test_the_paired_interval_of_tasks_without_common_tables_is_scipys():
    generator = torch.Generator().manual_seed(0)
    new, old = torch.rand(2, 12, generator=generator).add(1).tolist()
    rows = [row("new", str(i), ms) for i, ms in enumerate(new)] + [row("old", str(i), ms) for i, ms in enumerate(old)]
    ratios = [math.log(b / a) for a, b in zip(new, old, strict=True)]
    interval = stats.ttest_1samp(ratios, 0.0).confidence_interval(0.95)
    gain, reverse = paired_comparison(rows, "new", "old"), paired_comparison(rows, "old", "new")
    assert [gain.low, gain.high] == pytest.approx([1 - math.exp(-interval.low), 1 - math.exp(-interval.high)])
    assert (1 - gain.mean_gain) * (1 - reverse.mean_gain) == pytest.approx(1), "the same however the two are named"
    assert paired_comparison([*rows, row("new", "alone", 1.0)], "new", "old") == gain, "tasks that both have"
    with pytest.raises(ValueError):
        paired_comparison(rows, "new", "other")


def test_a_gain_is_the_median_over_rounds_in_which_both_were_measured():
    slow = [1.0, 1.4, 1.0, 1.3]  # the machine, in each round
    new = replace(row("new", "a", 9.0), rounds_ms=(9.0, 9.0 * 1.4, 9.0 * 1.5, 9.0 * 1.3))
    old = replace(row("old", "a", 10.0, device=(0, 0)), rounds_ms=tuple(10.0 * factor for factor in slow))
    assert paired_comparison([new, old], "new", "old").mean_gain == pytest.approx(0.1), "one burst decides nothing"


def test_tasks_that_share_tables_have_a_larger_error():
    gains = [0.1, 0.3, 0.2, 0.4]
    apart, error = [frozenset("ab"), frozenset("cd"), frozenset("ef"), frozenset("gh")], stats.sem(gains)
    assert mean_error(gains) == mean_error(gains, apart) == pytest.approx((error, 0.0))
    alike = [frozenset("ab"), frozenset("bc"), frozenset("cd"), frozenset("da")]
    shared = TABLES_SHARE * (8 * 0.5) / 12  # 8 of 12 ordered pairs share half of their tables
    variance = 4 * error**2 / (1 - shared)
    expected = math.sqrt(variance * shared + variance * (1 - shared) / 4), math.sqrt(variance * shared)
    assert mean_error(gains, alike) == pytest.approx(expected)


def test_more_tasks_show_a_gain_with_a_power_of_80_percent():
    def shown(count, mean, error=0.03):  # of independent tasks with this error of ten
        drawn = mean + error * (10 / count) ** 0.5 * np.random.default_rng(0).standard_normal(4000)
        comparisons = [PairedComparison.of(gains, error * (10 / count) ** 0.5, num_tasks=count) for gains in drawn]
        return np.mean([comparison.is_significant() for comparison in comparisons])

    gain = PairedComparison.of(0.04, 0.03, num_tasks=10)
    assert shown(10 + gain.more_tasks, 0.04) == pytest.approx(0.8, abs=0.03)
    others = {"shown": (0.1, 0.03), "loss": (-0.04, 0.03)}
    assert [PairedComparison.of(*other, num_tasks=10).more_tasks for other in others.values()] == [0, 0]
    assert PairedComparison.of(0.04, 0.03, tables_error=0.02, num_tasks=10).more_tasks is None, "only other tables"


def test_tasks_of_the_same_tables_count_as_one():
    same = [row(placer, task, ms, tables=("t", "u")) for placer, ms in (("new", 9.0), ("old", 10.0)) for task in "abc"]
    gain = paired_comparison(same, "new", "old")
    assert (gain.num_tasks, gain.mean_gain, gain.low, gain.high) == (1, pytest.approx(0.1), None, None)
    assert not gain.is_significant()
    other = paired_comparison([*same, row("new", "d", 8.0), row("old", "d", 10.0)], "new", "old")
    assert (other.num_tasks, other.mean_gain) == (2, pytest.approx(1 - 0.72**0.5)), "three equal tasks weigh as one"
    assert other.low is not None


def test_the_best_baseline_is_the_cheapest_heuristic():
    costs = {"random": (20.0, 30.0, 0.1), "dim_greedy": (10.0, 20.0), "size_greedy": (12.0, 21.0), "dreamshard": (9.0,)}
    rows = [row(placer, task, ms) for placer, all_ms in costs.items() for task, ms in zip("abc", all_ms, strict=False)]
    assert best_baseline(rows) == "dim_greedy"


def test_prediction_error_counts_a_shared_placement_once():
    rows = [
        row("x", "a", 10.0, predicted_ms=11.0, device=(0, 0)),
        row("y", "a", 10.0, predicted_ms=11.0, device=(0, 0)),
        row("z", "a", 20.0, predicted_ms=10.0, device=(0, 1)),
        row("w", "a", 30.0, predicted_ms=12.0, device=(1, 1)),
    ]
    assert prediction_error(rows) == pytest.approx((0.1 + 0.5 + 0.6) / 3)
    splits = [
        row(*split, predicted_ms=ms, dim=dim)
        for *split, ms, dim in (("x", "a", 10.0, 11.0, 8), ("y", "a", 20.0, 10.0, 4))
    ]
    assert prediction_error(splits) == pytest.approx((0.1 + 0.5) / 2), "two placements on equal devices"


def test_a_placement_that_did_not_fit_loses_to_any_that_did():
    def measure(task, placement, number, **_):
        sample = sample_of(task, placement, [6.0, 1.0])
        misfit = Infeasible(device=0, asked_bytes=6, free_bytes=5)
        return replace(sample, infeasible=misfit) if not placement.device.any() else sample

    devices = {"random": (0, 1, 1), "size_greedy": (0, 1, 1), "dreamshard": (0, 0, 0)}
    placers = {name: Fixed(name, device) for name, device in devices.items()}
    rows = run(measure, placers, [task_of([1, 2, 3], 2, 10)])
    assert [row.fits for row in rows] == [True, True, False]
    lost, won = paired_comparison(rows, "dreamshard", "random"), paired_comparison(rows, "random", "dreamshard")
    assert (lost.mean_gain, lost.is_positive, lost.is_significant(), lost.is_worse) == (None, False, False, True)
    assert (won.mean_gain, won.is_positive, won.is_significant()) == (None, True, True)
    assert best_baseline(rows) == "size_greedy"
    assert prediction_error(rows) == pytest.approx(1 / 6)
