"""Compare placers on the same tasks on a testbed: interleaved measurements, paired differences."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy
import torch

from dreamshard.baselines import RULES_OF_THUMB
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.legality import violation
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.prediction_metrics import mean_relative_error, rank_correlations
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask

Measure = Callable[[PlacementTask, Placement, int], CostSample]
"""Measures a placement in a round, counted from 0: a testbed that draws its noise must draw anew in each."""

Over = Literal["tasks", "variants", "repeats"]
"""What an interval is over: held-out tasks, drifted variants of one model, or repeated measurements of one task."""


@dataclass(frozen=True)
class EvaluationRow:
    """One placer on one task.

    Attributes:
        task: in whole tables; where the placer split some by columns, their shards are tables here.
        overall_ms: slowest device's sum, mean over the repeats; infinite where a shard did not fit.
        repeats_ms: of each repeat; repeat `r` of all placers was measured in the same round.
        predicted_ms: by the candidate's cost network; NaN where nothing predicts what steps cost.
        legal: whether the placement fit the devices when it was measured.
        place_ms: time to find the placement.
        costs: `[D]` of the first repeat.
    """

    placer: str
    task: PlacementTask
    placement: Placement
    overall_ms: float
    predicted_ms: float
    legal: bool
    place_ms: float
    costs: DeviceCosts
    repeats_ms: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Relative gain of one placer over another, task by task or round by round.

    Attributes:
        fits: whether every placement of the placer fitted its devices when measured.
        mean_gain: mean of `1 - cost / reference's cost`; above zero where it is cheaper. None where a placement of either did
            not fit.
        low: lower end of the 95 % interval of that mean (Student's t, paired); None without a mean, for a single task or
            round, and where every repeat measured the same.
        high: upper end.
        num_tasks: distinct tasks compared: tasks of the same tables count once.
        over: what the interval is over.
        num_repeats: rounds compared if it is over repeats.
        is_same_placement: whether both placed the one task alike, so that differences are noise and there is no interval.
    """

    fits: bool
    mean_gain: float | None
    low: float | None
    high: float | None
    num_tasks: int
    over: Over = "tasks"
    num_repeats: int | None = None
    is_same_placement: bool = False

    @property
    def is_positive(self) -> bool:
        """Whether the placer is cheaper on the mean or as cheap, or fits where the reference does not."""
        return self.fits if self.mean_gain is None else self.mean_gain >= 0

    @property
    def is_beyond_doubt(self) -> bool:
        """Whether the whole interval is above zero, or the placer fits where the reference does not."""
        return self.fits if self.mean_gain is None else self.low is not None and self.low > 0


def evaluate(
    placers: Mapping[str, Placer],
    tasks: Sequence[PlacementTask],
    measure: Measure,
    *,
    predict: Callable[[PlacementTask, Placement], DeviceCosts] | None,
    repeats: int,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[EvaluationRow]:
    """Place every task with every placer, then measure all placements, interleaved, `repeats` times.

    Each repeat has a new random order, so that a drift of the machine's speed favours no placer. A placement that several
    placers agree on is measured for each of them.

    Args:
        placers: by name.
        tasks: held out.
        measure: one placement, as a testbed does.
        predict: costs of a placement; None if nothing predicts them.
        repeats: measurements of each placement.
        seed: of the order of measuring.
        clock: seconds, for the time to place.

    Raises:
        NoPlacementError: a placer finds no room for a task; before anything is measured.
        ValueError: a placer returned an illegal placement; before anything is measured.
    """
    placed: dict[tuple[str, int], tuple[Placement, float]] = {}
    for i, task in enumerate(tasks):
        for name, placer in placers.items():
            began = clock()
            placement = placer.place(task)
            placed[name, i] = (placement, 1000 * (clock() - began))
            if broken := violation(task, placement):
                raise ValueError(
                    f"placer {name!r} placed {task.name} illegally: {broken}; fix the placer or leave it out"
                )
    samples: dict[tuple[str, int], list[CostSample]] = {key: [] for key in placed}
    generator = torch.Generator().manual_seed(seed)
    keys = list(placed)
    for round_number in range(repeats):
        for k in torch.randperm(len(keys), generator=generator).tolist():
            name, i = keys[k]
            samples[name, i].append(measure(tasks[i], placed[name, i][0], round_number))
    rows = []
    for (name, i), (placement, place_ms) in placed.items():
        shards = Shards.of(tasks[i], placement)
        measured_ms = tuple(sample.overall_ms for sample in samples[name, i])
        rows.append(
            EvaluationRow(
                placer=name,
                task=shards.as_task(tasks[i]),
                placement=Placement.whole(shards.device, shards.num_devices),
                overall_ms=sum(measured_ms) / repeats,
                predicted_ms=float(predict(tasks[i], placement).overall_ms()) if predict else math.nan,
                legal=all(sample.infeasible is None for sample in samples[name, i]),
                place_ms=place_ms,
                costs=samples[name, i][0].costs,
                repeats_ms=measured_ms,
            )
        )
    return rows


def paired_comparison(
    rows: Sequence[EvaluationRow], placer: str, reference: str, over: Over = "tasks"
) -> PairedComparison:
    """Gain of `placer` over `reference` on the tasks that both have.

    Tasks of the same tables are one task, whose gain is the mean of theirs.

    Args:
        over: tasks or variants to pair by task; repeats to pair by round, which takes rows of one task.

    Raises:
        ValueError: they have no task in common, or repeats of several tasks were to be paired.
    """
    own, other = ({row.task.name: row for row in rows if row.placer == name} for name in (placer, reference))
    shared = [task for task in own if task in other]
    if not shared:
        raise ValueError(
            f"{placer!r} and {reference!r} have no task in common, so there is nothing to compare; "
            "evaluate both on the same tasks"
        )
    distinct = {task: own[task].task.whole_tables for task in shared}
    fits, other_fits = (all(math.isfinite(by_task[task].overall_ms) for task in shared) for by_task in (own, other))
    comparison = PairedComparison(
        fits=fits, mean_gain=None, low=None, high=None, num_tasks=len(set(distinct.values())), over=over
    )
    if over == "repeats":
        if len(shared) > 1:
            raise ValueError(f"repeats of {len(shared)} tasks cannot be paired by round; compare one task at a time")
        comparison = replace(comparison, num_repeats=len(own[shared[0]].repeats_ms))
    if not fits or not other_fits:
        return comparison
    if over == "repeats":
        return _by_round(comparison, own[shared[0]], other[shared[0]])
    gains: dict[frozenset[str], list[float]] = {}
    for task in shared:
        gains.setdefault(distinct[task], []).append(1 - own[task].overall_ms / other[task].overall_ms)
    return _with_gains(comparison, [sum(same) / len(same) for same in gains.values()])


def _by_round(comparison: PairedComparison, own: EvaluationRow, other: EvaluationRow) -> PairedComparison:
    identities = {placement_identity(row.task, row.placement) for row in (own, other)}
    if len(identities) == 1:
        return replace(comparison, mean_gain=0.0, is_same_placement=True)
    gains = [1 - a / b for a, b in zip(own.repeats_ms, other.repeats_ms, strict=True)]
    is_repeatable = all(len(set(row.repeats_ms)) == 1 for row in (own, other))  # nothing was learnt by repeating
    return _with_gains(comparison, gains[:1] if is_repeatable else gains)


def _with_gains(comparison: PairedComparison, gains: Sequence[float]) -> PairedComparison:
    mean = sum(gains) / len(gains)
    if len(gains) == 1:
        return replace(comparison, mean_gain=mean)
    low, high = mean + scipy.stats.sem(gains) * np.array(scipy.stats.t.interval(0.95, len(gains) - 1))
    return replace(comparison, mean_gain=mean, low=float(low), high=float(high))


def mean_overall_ms(rows: Sequence[EvaluationRow], placer: str) -> float:
    """Mean measured cost of a placer over its tasks."""
    costs = [row.overall_ms for row in rows if row.placer == placer]
    return sum(costs) / len(costs)


def best_baseline(rows: Sequence[EvaluationRow]) -> str:
    """The rule of thumb with the lowest mean measured cost."""
    present = [name for name in RULES_OF_THUMB if any(row.placer == name for row in rows)]
    return min(present, key=lambda name: mean_overall_ms(rows, name))


def placement_identity(task: PlacementTask, placement: Placement) -> str:
    """Identifies a placement of these tables by which of them share a device; device numbers do not matter."""
    shards: dict[int, list[str]] = {}
    for name, device in zip(task.tables.names, placement.device.tolist(), strict=True):
        shards.setdefault(device, []).append(name)
    return repr(sorted(sorted(names) for names in shards.values()))


def prediction_figures(rows: Sequence[EvaluationRow]) -> tuple[float, float]:
    """Mean relative error of the predicted overall cost, and its mean rank correlation within a task.

    A placement that several placers share counts once. One that did not fit does not count.

    Returns:
        Both are NaN where nothing counts.
    """
    measurable = [row for row in rows if math.isfinite(row.overall_ms)]
    distinct = list({(row.task.name, tuple(row.placement.device.tolist())): row for row in measurable}.values())
    predicted = np.array([row.predicted_ms for row in distinct])
    measured = np.array([row.overall_ms for row in distinct])
    ranks = rank_correlations(predicted, measured, [row.task.name for row in distinct])
    defined = [rank for rank in ranks if not math.isnan(rank)]
    return mean_relative_error(predicted, measured), sum(defined) / len(defined) if defined else math.nan
