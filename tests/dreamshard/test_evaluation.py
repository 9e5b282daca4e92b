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
    placement_identity,
    prediction_figures,
)
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.tasks import PlacementTask
from tests.helpers.samples import sample_of
from tests.helpers.tables import ROW_BYTES, tables_of, task_of


@dataclass(frozen=True)
class Fixed:
    """Always the same placement."""

    name: str
    device: tuple[int, ...]

    def place(self, task, budget_ms=None):
        return Placement.whole(torch.tensor(self.device), task.num_devices)


class NoRoom:
    name = "no_room"

    def place(self, task, budget_ms=None):
        raise NoPlacementError(f"no room for {task.name}")


class Recorder:
    """Measures nothing: the n-th measurement costs n milliseconds."""

    def __init__(self):
        self.order = []

    def __call__(self, task, placement, number=0):
        self.order.append((task.name, tuple(placement.device.tolist())))
        return sample_of(task, placement, [float(len(self.order)), 0.0])


TASKS = [task_of([1, 1], 2, 1, name="one"), task_of([1, 1], 2, 1, name="two")]
PLACERS = {"left": Fixed("left", (0, 1)), "right": Fixed("right", (1, 0))}


def predicted(ms):
    """Predicts the same cost of every placement."""
    return lambda task, placement: DeviceCosts.from_phases(torch.tensor([[ms, 0.0, 0.0, 0.0]]))


def run(measure, placers=PLACERS, repeats=3, seed=0):
    return evaluate(placers, TASKS, measure, predict=predicted(7.0), repeats=repeats, seed=seed)


def row(placer, task, overall_ms, predicted_ms=1.0, device=(0, 1), place_ms=1.0, tables=None, repeats_ms=()):
    """One placer on the task of that name, whose two tables are named after it unless `tables` names them."""
    names = tables or (f"{task}0", f"{task}1")
    of = PlacementTask(tables_of([1, 1], names=names), 2, 2 * ROW_BYTES, name=task)
    costs = DeviceCosts.from_phases(torch.zeros(2, 4))
    placement = Placement.whole(torch.tensor(device), 2)
    return EvaluationRow(placer, of, placement, overall_ms, predicted_ms, True, place_ms, costs, repeats_ms)


def test_every_repeat_measures_every_placer_on_every_task_once():
    measure = Recorder()
    run(measure)
    everything = {(task, device) for task in ("one", "two") for device in ((0, 1), (1, 0))}
    repeats = [measure.order[i : i + 4] for i in (0, 4, 8)]
    assert all(set(each) == everything and len(each) == 4 for each in repeats)


def test_the_order_is_drawn_anew_for_each_repeat_and_fixed_by_the_seed():
    first, again, other = Recorder(), Recorder(), Recorder()
    for measure, seed in ((first, 0), (again, 0), (other, 1)):
        run(measure, repeats=6, seed=seed)
    assert first.order == again.order != other.order
    assert len({tuple(first.order[i : i + 4]) for i in range(0, 24, 4)}) > 1


def test_a_row_is_the_mean_over_its_repeats_with_the_prediction_beside_it():
    measure = Recorder()
    rows = run(measure)
    assert [(row.placer, row.task.name) for row in rows] == [
        ("left", "one"),
        ("right", "one"),
        ("left", "two"),
        ("right", "two"),
    ]
    for each in rows:
        key = (each.task.name, tuple(each.placement.device.tolist()))
        measured = [n + 1 for n, seen in enumerate(measure.order) if seen == key]
        assert each.overall_ms == pytest.approx(sum(measured) / 3)
        assert float(each.costs.forward_compute_ms[0]) == measured[0]
        assert (each.predicted_ms, each.legal) == (7.0, True)


def test_a_task_without_a_placement_is_an_error_before_anything_is_measured():
    measure = Recorder()
    with pytest.raises(NoPlacementError, match="no room for one"):
        run(measure, placers={**PLACERS, "no_room": NoRoom()})
    assert measure.order == []


def test_an_illegal_placement_is_an_error_before_anything_is_measured():
    measure = Recorder()
    with pytest.raises(ValueError, match="'both_on_one' placed one illegally"):
        run(measure, placers={**PLACERS, "both_on_one": Fixed("both_on_one", (0, 0))})
    assert measure.order == []


def test_the_paired_interval_is_scipys():
    generator = torch.Generator().manual_seed(0)
    new, old = torch.rand(2, 12, generator=generator).add(1).tolist()
    rows = [row("new", str(i), ms) for i, ms in enumerate(new)] + [row("old", str(i), ms) for i, ms in enumerate(old)]
    interval = stats.ttest_1samp([1 - a / b for a, b in zip(new, old, strict=True)], 0.0).confidence_interval(0.95)
    found = paired_comparison(rows, "new", "old")
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_one_task_says_nothing_of_the_spread():
    found = paired_comparison([row("new", "a", 9.0), row("old", "a", 10.0)], "new", "old")
    assert (found.mean_gain, found.low, found.high) == (pytest.approx(0.1), None, None)


def test_tasks_of_the_same_tables_are_one_task_and_make_no_interval():
    same = [row(placer, task, ms, tables=("t", "u")) for placer, ms in (("new", 9.0), ("old", 10.0)) for task in "abc"]
    found = paired_comparison(same, "new", "old")
    assert (found.num_tasks, found.mean_gain, found.low, found.high) == (1, pytest.approx(0.1), None, None)
    assert not found.is_beyond_doubt
    other = paired_comparison([*same, row("new", "d", 8.0), row("old", "d", 10.0)], "new", "old")
    assert (other.num_tasks, other.mean_gain) == (2, pytest.approx(0.15)), "three equal tasks weigh as one"
    assert other.low is not None


def rounds(placer, *costs_ms, device=(0, 1)):
    return row(placer, "model", sum(costs_ms) / len(costs_ms), device=device, repeats_ms=costs_ms)


def test_repeats_of_one_task_are_paired_by_round():
    rows = [rounds("new", 9.0, 16.0), rounds("old", 10.0, 20.0, device=(0, 0))]
    found = paired_comparison(rows, "new", "old", "repeats")
    assert found.mean_gain == pytest.approx(0.15), "gains 0.1 and 0.2, however much the rounds themselves differ"
    assert (found.low, found.high) == pytest.approx((0.15 - 0.6353, 0.15 + 0.6353), abs=1e-4)
    assert (found.num_tasks, found.num_repeats, found.over) == (1, 2, "repeats")
    with pytest.raises(ValueError, match="one task at a time"):
        paired_comparison([*rows, row("new", "b", 1.0), row("old", "b", 1.0)], "new", "old", "repeats")


def test_the_same_placement_under_other_device_numbers_saves_nothing_whatever_was_measured():
    found = paired_comparison(
        [rounds("new", 9.0, 9.1), rounds("old", 10.0, 9.9, device=(1, 0))], "new", "old", "repeats"
    )
    assert (found.is_same_placement, found.mean_gain, found.low) == (True, 0.0, None)


def test_a_placement_is_identified_by_which_tables_share_a_device():
    task = task_of([1, 1, 1], 3, 3)
    one, renumbered, other = (Placement.whole(torch.tensor(device), 3) for device in ((0, 0, 1), (2, 2, 0), (0, 1, 1)))
    assert placement_identity(task, one) == placement_identity(task, renumbered) != placement_identity(task, other)


def test_only_tasks_that_both_have_are_compared():
    rows = [row("new", "a", 9.0), row("old", "a", 10.0), row("new", "b", 1.0), row("old", "c", 1.0)]
    assert paired_comparison(rows, "new", "old").num_tasks == 1
    with pytest.raises(ValueError, match="no task in common"):
        paired_comparison([row("new", "a", 1.0), row("old", "b", 1.0)], "new", "old")


TABLE = [
    row("random", "a", 20.0),
    row("dim_greedy", "a", 10.0, predicted_ms=12.0, place_ms=2.0),
    row("size_greedy", "a", 12.0),
    row("dreamshard", "a", 9.0),
    row("random", "b", 30.0),
    row("dim_greedy", "b", 20.0, predicted_ms=18.0, place_ms=4.0),
    row("size_greedy", "b", 21.0),
    row("dreamshard", "b", 18.0),
]


def test_the_best_baseline_is_the_cheapest_rule_of_thumb_not_chance_and_not_the_candidate():
    assert best_baseline(TABLE) == "dim_greedy"
    lucky = [*TABLE, row("random", "c", 0.1)]
    assert best_baseline(lucky) == "dim_greedy"
    assert mean_overall_ms(TABLE, "dim_greedy") == 15.0


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


def test_column_splits_on_equal_devices_are_two_placements():
    rows = [
        row("x", "a", 10.0, predicted_ms=11.0, tables=("t[0:8]", "t[8:16]")),
        row("y", "a", 20.0, predicted_ms=10.0, tables=("t[0:4]", "t[4:16]")),
    ]
    assert prediction_figures(rows)[0] == pytest.approx((0.1 + 0.5) / 2)


def test_a_placement_that_did_not_fit_loses_against_any_that_did_and_bends_no_other_figure():
    task = task_of([1, 2, 3], 2, 10)
    together = Placement.whole(torch.tensor([0, 0, 0]), 2)

    def measure(task, placement, number):
        if torch.equal(placement.device, together.device):
            misfit = Infeasible(device=0, asked_bytes=6, free_bytes=5)
            empty = sample_of(task, placement, [0.0, 0.0])
            return replace(empty, infeasible=misfit)
        return sample_of(task, placement, [2.0, 1.0])

    placers = {name: Fixed(name, (0, 1, 1)) for name in ("random", "size_greedy")} | {
        "dreamshard": Fixed("dreamshard", (0, 0, 0))
    }
    rows = evaluate(placers, [task], measure, predict=predicted(3.0), repeats=2, seed=0)
    assert [row.legal for row in rows] == [True, True, False]
    lost, won = paired_comparison(rows, "dreamshard", "random"), paired_comparison(rows, "random", "dreamshard")
    assert (lost.mean_gain, lost.is_positive, lost.is_beyond_doubt) == (None, False, False)
    assert (won.mean_gain, won.is_positive, won.is_beyond_doubt) == (None, True, True)
    assert best_baseline(rows) == "size_greedy"
    assert prediction_figures(rows)[0] == pytest.approx(0.5)
    assert mean_overall_ms(rows, "dreamshard") == math.inf
