"""Compare placers on the same tasks on a testbed: interleaved measurements, paired differences."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import scipy
import torch
from numpy.typing import ArrayLike

from dreamshard.cost_model import mean_relative_error
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import SHARDING_TYPES, Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search.baselines import RULES_OF_THUMB
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask

Measure = Callable[[PlacementTask, Placement, int], CostSample]
"""Measures a placement in a round, counted from 0: a testbed that draws its noise draws it again in each."""

Over = Literal["tasks", "variants", "repeats"]
"""An interval is over held-out tasks, drifted variants of one model, or repeated measurements of one task."""


@dataclass(frozen=True)
class EvaluationRow:
    """One placer on one task.

    Attributes:
        task: whatever its constraints, with every way to shard.
        repeats_ms: slowest device's sum in each repeat, infinite if a shard did not fit; repeat `r` of all placers was
            measured in the same round.
        predicted_ms: by the candidate's cost network; NaN if nothing predicts it.
        place_ms: time to find the placement.
        costs: `[D]` of the first repeat.
    """

    placer: str
    task: PlacementTask
    placement: Placement
    repeats_ms: tuple[float, ...]
    predicted_ms: float
    place_ms: float
    costs: DeviceCosts

    @property
    def overall_ms(self) -> float:
        """Mean over the repeats."""
        return fmean(self.repeats_ms)

    @property
    def fits(self) -> bool:
        """Whether the placement fitted the devices when it was measured."""
        return math.isfinite(self.overall_ms)


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Relative gain of one placer over another, task by task or round by round.

    Attributes:
        fits: whether every placement of the placer fitted its devices when measured.
        mean_gain: mean of `1 - cost / reference's cost`, above zero if cheaper; None if a placement of either did not fit.
        low: lower end of the 95 % interval of that mean (Student's t, paired); None without a mean, for a single task or
            round, or if every repeat measured the same.
        high: upper end.
        num_tasks: distinct tasks compared: tasks of the same tables count once.
        over: kind of the values behind the interval.
        num_repeats: rounds compared if it is over repeats.
        is_same_placement: whether both placed the one task alike, so that differences are noise and there is no interval.
    """

    fits: bool
    num_tasks: int
    mean_gain: float | None = None
    low: float | None = None
    high: float | None = None
    over: Over = "tasks"
    num_repeats: int | None = None
    is_same_placement: bool = False

    @property
    def is_positive(self) -> bool:
        """Whether the placer is cheaper on average or as cheap, or fits and the reference does not."""
        return self.fits if self.mean_gain is None else self.mean_gain >= 0

    @property
    def more_tasks(self) -> int:
        """Further tasks that would exclude zero from the interval of a gain like this; 0 if it is shown, or is a loss."""
        if self.over != "tasks" or not self.mean_gain or self.low is None or not self.low <= 0 < self.mean_gain:
            return 0
        return math.ceil(self.num_tasks * (1 - self.low / self.mean_gain) ** 2) - self.num_tasks

    @property
    def is_significant(self) -> bool:
        """Whether the whole interval is above zero, or the placer fits and the reference does not."""
        return self.fits if self.mean_gain is None else self.low is not None and self.low > 0


def evaluate(
    placers: Mapping[str, Placer],
    tasks: Sequence[PlacementTask],
    measure: Measure,
    *,
    predict: Callable[[str, PlacementTask, Placement], DeviceCosts] | None,
    repeats: int,
    seed: int,
    optional: Collection[str] = (),
) -> list[EvaluationRow]:
    """Place every task with every placer, then measure all placements, interleaved, `repeats` times.

    Each repeat has a new random order, so that a drift of the machine's speed favours no placer. A placement that several
    placers agree on is measured for each of them. A placement may shard tables in any way that the testbed measures, as a
    plan in use may, though constraints keep searches from it.

    Args:
        predict: costs of a placement by a placer, which is named first; None if nothing predicts them.
        seed: of the order of measuring.
        optional: placers that are left out if they find no room for a task.

    Raises:
        NoPlacementError: another placer finds no room for a task; before anything is measured.
        ValueError: a placer returned an illegal placement; before anything is measured.
    """
    taking_part, placed = dict(placers), list[tuple[str, PlacementTask, Placement, float]]()
    for task in tasks:
        measured = replace(task, constraints=replace(task.constraints, sharding_types=SHARDING_TYPES, caching=True))
        for name, placer in [*taking_part.items()]:
            began = time.perf_counter()
            try:
                placement = placer.place(task)
            except NoPlacementError:
                if name not in optional:
                    raise
                del taking_part[name]
                continue
            placed.append((name, measured, placement, 1000 * (time.perf_counter() - began)))
            if broken := violation(measured, placement):
                raise ValueError(f"placer {name!r} placed {task.name} illegally: {broken}; leave it out")
    placed = [each for each in placed if each[0] in taking_part]
    samples: list[list[CostSample]] = [[] for _ in placed]
    generator = torch.Generator().manual_seed(seed)
    for round_number in range(repeats):
        for k in torch.randperm(len(placed), generator=generator).tolist():
            _, measured, placement, _ = placed[k]
            samples[k].append(measure(measured, placement, round_number))
    return [
        EvaluationRow(
            placer=name,
            task=task,
            placement=placement,
            repeats_ms=tuple(sample.overall_ms for sample in own),
            predicted_ms=float(predict(name, task, placement).overall_ms()) if predict else math.nan,
            place_ms=place_ms,
            costs=own[0].costs,
        )
        for (name, task, placement, place_ms), own in zip(placed, samples, strict=True)
    ]


def paired_comparison(
    rows: Sequence[EvaluationRow], placer: str, reference: str, over: Over = "tasks"
) -> PairedComparison:
    """Gain of `placer` over `reference` on the tasks that both have.

    Tasks of the same tables are one task, whose gain is the mean of theirs.

    Args:
        over: tasks or variants to pair by task; repeats to pair by round, which takes rows of one task.

    Raises:
        ValueError: they have no task in common, or repeats of several tasks are to be paired.
    """
    own, other = ({row.task.name: row for row in rows if row.placer == name} for name in (placer, reference))
    pairs = [(row, other[task]) for task, row in own.items() if task in other]
    if not pairs:
        raise ValueError(f"{placer!r} and {reference!r} have no task in common; evaluate both on the same tasks")
    found = PairedComparison(
        fits=all(row.fits for row, _ in pairs),
        num_tasks=len({row.task.whole_tables for row, _ in pairs}),
        over=over,
        num_repeats=len(pairs[0][0].repeats_ms) if over == "repeats" else None,
    )
    if not all(row.fits for pair in pairs for row in pair):
        return found
    if over == "repeats":
        [pair] = pairs
        if len({placement_identity(row.task, row.placement) for row in pair}) == 1:
            return replace(found, mean_gain=0.0, is_same_placement=True)
        rounds = [*zip(*(row.repeats_ms for row in pair), strict=True)]
        if len(set(rounds)) == 1:  # repeating showed nothing
            rounds = rounds[:1]
        gains = [1 - a / b for a, b in rounds]
    else:
        of_tables: dict[frozenset[str], list[float]] = defaultdict(list)
        for row, reference_row in pairs:
            of_tables[row.task.whole_tables].append(1 - row.overall_ms / reference_row.overall_ms)
        gains = [fmean(same) for same in of_tables.values()]
    mean = fmean(gains)
    if len(gains) == 1:
        return replace(found, mean_gain=mean)
    margin = float(scipy.stats.t.ppf(0.975, len(gains) - 1) * scipy.stats.sem(gains))
    return replace(found, mean_gain=mean, low=mean - margin, high=mean + margin)


def mean_overall_ms(rows: Sequence[EvaluationRow], placer: str) -> float:
    """Mean measured cost of a placer over its tasks."""
    return fmean(row.overall_ms for row in rows if row.placer == placer)


def best_baseline(rows: Sequence[EvaluationRow]) -> str:
    """The rule of thumb with the lowest mean measured cost."""
    present = [name for name in RULES_OF_THUMB if any(row.placer == name for row in rows)]
    return min(present, key=lambda name: mean_overall_ms(rows, name))


def placement_identity(task: PlacementTask, placement: Placement) -> str:
    """Identifies a placement of these tables by which shards share a device; device numbers do not matter."""
    shards, held = Shards.of(task, placement), defaultdict[int, list[str]](list)
    for name, device in zip(shards.tables.names, shards.device.tolist(), strict=True):
        held[device].append(name)
    return repr(sorted(map(sorted, held.values())))


def prediction_figures(rows: Sequence[EvaluationRow]) -> tuple[float, float]:
    """Mean relative error of the predicted overall cost, and its mean rank correlation within a task, or NaN.

    A placement that several placers share counts once. One that did not fit does not count.
    """
    by_placement = {(row.task.name, row.task.tables.names, row.placement): row for row in rows if row.fits}
    distinct = by_placement.values()
    predicted, measured = np.array([(row.predicted_ms, row.overall_ms) for row in distinct]).reshape(-1, 2).T
    names = [row.task.name for row in distinct]
    return mean_relative_error(predicted, measured), mean_rank_correlation(predicted, measured, names)


def mean_rank_correlation(predicted: ArrayLike, measured: ArrayLike, names: Sequence[Hashable]) -> float:
    """Mean of Spearman's among the values of each name that has at least 3, since ranks of fewer mean little.

    Names with constant values do not count; NaN if none counts.
    """
    pairs = pd.DataFrame({"predicted": predicted, "measured": measured, "name": names})
    groups = (group for _, group in pairs.groupby("name") if len(group) > 2)
    ranks = [group["predicted"].corr(group["measured"], method="spearman") for group in groups]
    return float(pd.Series(ranks, dtype=float).mean())
