"""Placers compared: interleaved, paired, by hand."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.evaluation import (
    EvaluationRow,
    best_baseline,
    evaluate,
    mean_overall_ms,
    paired_comparison,
    prediction_figures,
)
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.tasks import PlacementTask
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
    """Measures nothing: the n-th measurement costs n milliseconds."""

    def __init__(self):
        self.order = []

    def __call__(self, task, placement, number=0):
        self.order.append((task.name, tuple(placement.device.tolist())))
        return sample_of(task, placement, [float(len(self.order)), 0.0])


TASKS = [task_of([1, 1], 2, 1, name="one"), task_of([1, 1], 2, 1, name="two")]
PLACERS = {"left": Fixed("left", (0, 1)), "right": Fixed("right", (1, 0))}


def run(measure, placers=PLACERS, tasks=TASKS, repeats=3, seed=0, **options):
    """An evaluation in which 7 ms are predicted of every placement."""
    costs = DeviceCosts(torch.tensor([[7.0, 0.0, 0.0, 0.0]]))
    return evaluate(placers, tasks, measure, predict=lambda *_: costs, repeats=repeats, seed=seed, **options)


def row(placer, task, *repeats_ms, predicted_ms=1.0, device=(0, 1), tables=None):
    """One placer on the task of that name, whose two tables are named after it unless `tables` names them."""
    of = PlacementTask(tables_of([1, 1], names=tables or (f"{task}0", f"{task}1")), 2, 2 * ROW_BYTES, name=task)
    costs = DeviceCosts(torch.zeros(2, 4))
    return EvaluationRow(placer, of, Placement.whole(device, 2), repeats_ms, predicted_ms, 1.0, costs)


def test_each_repeat_measures_all_in_its_own_seeded_order():
    first, again, other = Recorder(), Recorder(), Recorder()
    for measure, seed in ((first, 0), (again, 0), (other, 1)):
        run(measure, repeats=6, seed=seed)
    everything = {(task, device) for task in ("one", "two") for device in ((0, 1), (1, 0))}
    repeats = [tuple(first.order[i : i + 4]) for i in range(0, 24, 4)]
    assert all(set(each) == everything for each in repeats)
    assert len(set(repeats)) > 1
    assert first.order == again.order != other.order


def test_a_row_holds_its_repeats_their_mean_and_the_prediction():
    measure = Recorder()
    rows = run(measure)
    assert [(row.placer, row.task.name) for row in rows] == [(p, t) for t in ("one", "two") for p in PLACERS]
    for each in rows:
        key = (each.task.name, tuple(each.placement.device.tolist()))
        measured = tuple(n + 1 for n, seen in enumerate(measure.order) if seen == key)
        assert (each.repeats_ms, each.overall_ms) == (measured, pytest.approx(sum(measured) / 3))
        assert float(each.costs.phases_ms[0, 0]) == measured[0]
        assert (each.predicted_ms, each.fits) == (7.0, True)


@pytest.mark.parametrize(
    ("other", "error"), [(Fixed("no room"), NoPlacementError), (Fixed("both on one", (0, 0)), ValueError)]
)
def test_measuring_starts_after_every_placer_placed_every_task(other, error):
    measure = Recorder()
    with pytest.raises(error):
        run(measure, placers={**PLACERS, "other": other})
    assert measure.order == []


def test_an_optional_placer_without_room_is_left_out():
    rows = run(Recorder(), placers={**PLACERS, "other": Fixed("no room")}, optional=["other"])
    assert {row.placer for row in rows} == PLACERS.keys()


def test_the_paired_interval_is_scipys():
    generator = torch.Generator().manual_seed(0)
    new, old = torch.rand(2, 12, generator=generator).add(1).tolist()
    rows = [row("new", str(i), ms) for i, ms in enumerate(new)] + [row("old", str(i), ms) for i, ms in enumerate(old)]
    interval = stats.ttest_1samp([1 - a / b for a, b in zip(new, old, strict=True)], 0.0).confidence_interval(0.95)
    found = paired_comparison(rows, "new", "old")
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert paired_comparison([*rows, row("new", "alone", 1.0)], "new", "old") == found, "tasks that both have"
    with pytest.raises(ValueError):
        paired_comparison(rows, "new", "other")


def test_tasks_of_the_same_tables_count_as_one():
    same = [row(placer, task, ms, tables=("t", "u")) for placer, ms in (("new", 9.0), ("old", 10.0)) for task in "abc"]
    found = paired_comparison(same, "new", "old")
    assert (found.num_tasks, found.mean_gain, found.low, found.high) == (1, pytest.approx(0.1), None, None)
    assert not found.is_significant
    other = paired_comparison([*same, row("new", "d", 8.0), row("old", "d", 10.0)], "new", "old")
    assert (other.num_tasks, other.mean_gain) == (2, pytest.approx(0.15)), "three equal tasks weigh as one"
    assert other.low is not None


def test_repeats_of_one_task_are_paired_by_round():
    rows = [row("new", "model", 9.0, 16.0), row("old", "model", 10.0, 20.0, device=(0, 0))]
    found = paired_comparison(rows, "new", "old", "repeats")
    assert found.mean_gain == pytest.approx(0.15), "gains 0.1 and 0.2, however much the rounds themselves differ"
    assert (found.low, found.high) == pytest.approx((0.15 - 0.6353, 0.15 + 0.6353), abs=1e-4)
    assert (found.num_tasks, found.num_repeats, found.over) == (1, 2, "repeats")
    exact = [row("new", "model", 9.0, 9.0), row("old", "model", 10.0, 10.0, device=(0, 0))]
    assert paired_comparison(exact, "new", "old", "repeats").low is None
    with pytest.raises(ValueError):
        paired_comparison([*rows, row("new", "b", 1.0), row("old", "b", 1.0)], "new", "old", "repeats")


def test_the_same_placement_on_renamed_devices_saves_nothing():
    rows = [row("new", "model", 9.0, 9.1), row("old", "model", 10.0, 9.9, device=(1, 0))]
    found = paired_comparison(rows, "new", "old", "repeats")
    assert (found.is_same_placement, found.mean_gain, found.low) == (True, 0.0, None)


def test_the_best_baseline_is_the_cheapest_rule_of_thumb():
    costs = {"random": (20.0, 30.0, 0.1), "dim_greedy": (10.0, 20.0), "size_greedy": (12.0, 21.0), "dreamshard": (9.0,)}
    rows = [row(placer, task, ms) for placer, own in costs.items() for task, ms in zip("abc", own, strict=False)]
    assert best_baseline(rows) == "dim_greedy"
    assert mean_overall_ms(rows, "dim_greedy") == 15.0


def test_prediction_error_counts_a_shared_placement_once():
    rows = [
        row("x", "a", 10.0, predicted_ms=11.0, device=(0, 0)),
        row("y", "a", 10.0, predicted_ms=11.0, device=(0, 0)),
        row("z", "a", 20.0, predicted_ms=10.0, device=(0, 1)),
        row("w", "a", 30.0, predicted_ms=12.0, device=(1, 1)),
    ]
    error, rank = prediction_figures(rows)
    assert error == pytest.approx((0.1 + 0.5 + 0.6) / 3)
    assert rank == pytest.approx(0.5)  # ranks 2, 1, 3 against 1, 2, 3
    splits = [
        row("x", "a", 10.0, predicted_ms=11.0, tables=("t[0:8]", "t[8:16]")),
        row("y", "a", 20.0, predicted_ms=10.0, tables=("t[0:4]", "t[4:16]")),
    ]
    assert prediction_figures(splits)[0] == pytest.approx((0.1 + 0.5) / 2), "two placements on equal devices"


def test_a_placement_that_did_not_fit_loses_to_any_that_did():
    def measure(task, placement, number):
        sample = sample_of(task, placement, [6.0, 1.0])
        misfit = Infeasible(device=0, asked_bytes=6, free_bytes=5)
        return replace(sample, infeasible=misfit) if not placement.device.any() else sample

    devices = {"random": (0, 1, 1), "size_greedy": (0, 1, 1), "dreamshard": (0, 0, 0)}
    placers = {name: Fixed(name, device) for name, device in devices.items()}
    rows = run(measure, placers, [task_of([1, 2, 3], 2, 10)], repeats=2)
    assert [row.fits for row in rows] == [True, True, False]
    lost, won = paired_comparison(rows, "dreamshard", "random"), paired_comparison(rows, "random", "dreamshard")
    assert (lost.mean_gain, lost.is_positive, lost.is_significant) == (None, False, False)
    assert (won.mean_gain, won.is_positive, won.is_significant) == (None, True, True)
    assert best_baseline(rows) == "size_greedy"
    assert prediction_figures(rows)[0] == pytest.approx(1 / 6)
    assert mean_overall_ms(rows, "dreamshard") == math.inf
