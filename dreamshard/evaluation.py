"""Compare placers on the same held-out tasks on a testbed: interleaved measurements, paired differences."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from dreamshard.baselines import RULES_OF_THUMB
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.prediction_metrics import mean_relative_error, rank_correlations
from dreamshard.tasks import PlacementTask

Measure = Callable[[PlacementTask, Placement], CostSample]


@dataclass(frozen=True)
class EvaluationRow:
    """One placer on one task.

    Attributes:
        task: in whole tables; where the placer split some by columns, their shards are tables here.
        overall_ms: slowest device's sum, mean over the repeats; infinite where a shard did not fit.
        predicted_ms: by the candidate's cost network.
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


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Relative gain of one placer over another, task by task.

    Attributes:
        fits: whether every placement of the placer fitted its devices when measured.
        mean_gain: mean over tasks of `1 - cost / reference's cost`; above zero where it is cheaper. None where a
            placement of either did not fit.
        low: lower end of the 95 % interval of that mean (Student's t, paired); None for a single task, and without a mean.
        high: upper end.
        num_tasks: tasks compared.
    """

    fits: bool
    mean_gain: float | None
    low: float | None
    high: float | None
    num_tasks: int

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
    predict_ms: Callable[[PlacementTask, Placement], float],
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
        predict_ms: overall cost of a placement.
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
            if not task.is_legal(placement):
                raise ValueError(
                    f"placer {name!r} put the tables of {task.name} where devices have no room, so its placement cannot "
                    "be measured; fix the placer or leave it out"
                )
    samples: dict[tuple[str, int], list[CostSample]] = {key: [] for key in placed}
    generator = torch.Generator().manual_seed(seed)
    keys = list(placed)
    for _ in range(repeats):
        for k in torch.randperm(len(keys), generator=generator).tolist():
            name, i = keys[k]
            samples[name, i].append(measure(tasks[i], placed[name, i][0]))
    return [
        EvaluationRow(
            name,
            *tasks[i].sharded(placement),
            sum(sample.overall_ms for sample in samples[name, i]) / repeats,
            predict_ms(tasks[i], placement),
            all(sample.infeasible is None for sample in samples[name, i]),
            place_ms,
            samples[name, i][0].costs,
        )
        for (name, i), (placement, place_ms) in placed.items()
    ]


def paired_comparison(rows: Sequence[EvaluationRow], placer: str, reference: str) -> PairedComparison:
    """Gain of `placer` over `reference` on the tasks that both have.

    Raises:
        ValueError: they have no task in common.
    """
    cost = {(row.placer, row.task.name): row.overall_ms for row in rows}
    shared = [task for name, task in cost if name == placer and (reference, task) in cost]
    if not shared:
        raise ValueError(
            f"{placer!r} and {reference!r} have no task in common, so there is nothing to compare; "
            "evaluate both on the same tasks"
        )
    fits, reference_fits = (all(math.isfinite(cost[name, task]) for task in shared) for name in (placer, reference))
    comparison = PairedComparison(fits=fits, mean_gain=None, low=None, high=None, num_tasks=len(shared))
    if not fits or not reference_fits:
        return comparison
    gains = [1 - cost[placer, task] / cost[reference, task] for task in shared]
    mean = sum(gains) / len(gains)
    if len(gains) == 1:
        return replace(comparison, mean_gain=mean)
    low, high = mean + stats.sem(gains) * np.array(stats.t.interval(0.95, len(gains) - 1))
    return replace(comparison, mean_gain=mean, low=float(low), high=float(high))


def mean_overall_ms(rows: Sequence[EvaluationRow], placer: str) -> float:
    """Mean measured cost of a placer over its tasks."""
    costs = [row.overall_ms for row in rows if row.placer == placer]
    return sum(costs) / len(costs)


def best_baseline(rows: Sequence[EvaluationRow]) -> str:
    """The rule of thumb with the lowest mean measured cost."""
    present = [name for name in RULES_OF_THUMB if any(row.placer == name for row in rows)]
    return min(present, key=lambda name: mean_overall_ms(rows, name))


def prediction_figures(rows: Sequence[EvaluationRow]) -> tuple[float, float]:
    """Mean relative error of the predicted overall cost, and its mean rank correlation within a task.

    A placement that several placers share counts once. One that did not fit does not count.
    """
    measurable = [row for row in rows if math.isfinite(row.overall_ms)]
    distinct = list({(row.task.name, tuple(row.placement.device.tolist())): row for row in measurable}.values())
    predicted = np.array([row.predicted_ms for row in distinct])
    measured = np.array([row.overall_ms for row in distinct])
    ranks = rank_correlations(predicted, measured, [row.task.name for row in distinct])
    defined = [rank for rank in ranks if not math.isnan(rank)]
    return mean_relative_error(predicted, measured), sum(defined) / len(defined) if defined else math.nan
