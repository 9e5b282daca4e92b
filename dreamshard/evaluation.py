"""Compare placers on the same tasks on a testbed: measurements next to each other, paired differences."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import scipy
import torch

from dreamshard.cost_model import mean_relative_error
from dreamshard.costs import PHASES, CostSample, DeviceCosts
from dreamshard.search.packing import HEURISTICS
from dreamshard.tables import SHARDING_TYPES, Placement
from dreamshard.tasks import NoPlacementError, PlacementTask, Placer, Shards, violation
from dreamshard.testbeds.rounds import least, measure_in_rounds

REFERENCE_EVERY = 5
"""The reference placement is measured with each fifth group of placements."""

Over = Literal["tasks", "variants"]
"""An interval is over held-out tasks, or one model and variants of it."""

TABLES_SHARE = 0.15
"""Assumed share of the gains' variance between tasks that the tables explain. The intervals of 30 tasks of 20 from 120 tables
covered 84 to 93 % over tasks of other tables without it, which a share of 0.03 to 0.15 explains; one evaluation cannot tell
which."""

_TAIL, _POWER = (1 - 0.95) / 2, 0.8


@dataclass(frozen=True)
class EvaluationRow:
    """One placer on one task.

    Attributes:
        task: whatever its constraints, with every sharding type.
        placement: None if the placer could not fit the task, which counts as a placement that did not fit.
        overall_ms: slowest device's sum in the least disturbed round; infinite if a shard did not fit.
        predicted_ms: by the candidate's cost network; NaN if nothing predicts it.
        place_ms: time to find the placement.
        costs: `[D]`.
        rounds_ms: slowest device's sum in each round; round `r` of all placers was measured within moments. Empty if unknown.
    """

    placer: str
    task: PlacementTask
    placement: Placement | None
    overall_ms: float
    predicted_ms: float
    place_ms: float
    costs: DeviceCosts
    rounds_ms: tuple[float, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the placement fitted the devices when it was measured."""
        return math.isfinite(self.overall_ms)


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Relative gain of one placer over another, task by task.

    A gain is `1 - exp(-m)`, where `m` is the mean of `log(reference's cost / cost)`: the share of the cost that is saved, and
    the same however the two are named. Of one task it is the median over the rounds, in each of which both were measured
    within moments: a machine that is slow for seconds slows both. Intervals are over other tables (`mean_error`), or of one
    model over variants of it, so that they cover the luck of one search as well as noise.

    Attributes:
        fits: whether every placement of the placer fitted its devices when measured.
        mean_gain: above zero if cheaper; None if a placement of either did not fit.
        low: lower end of the gain's 95 % interval (Student's t, paired); None without a mean, or for a single task.
        high: upper end.
        num_tasks: distinct tasks compared: tasks of the same tables count once.
        error: standard error of `m`; None without an interval.
        tables_error: the part of it that more tasks of the same tables would not lower.
        over: kind of the values behind the interval.
    """

    fits: bool
    num_tasks: int
    mean_gain: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    tables_error: float = 0.0
    over: Over = "tasks"

    @classmethod
    def of(cls, mean: float, error: float, **others: Any) -> "PairedComparison":
        """The comparison with this mean log ratio of costs and its standard error."""
        made = cls(fits=True, mean_gain=_saved(mean), error=error, **others)
        margin = made.quantile(1 - _TAIL) * error
        return replace(made, low=_saved(mean - margin), high=_saved(mean + margin))

    @property
    def is_positive(self) -> bool:
        """Whether the placer is cheaper on average or as cheap, or fits and the reference does not."""
        return self.fits if self.mean_gain is None else self.mean_gain >= 0

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is below zero, or the placer does not fit."""
        return not self.fits if self.mean_gain is None else self.high is not None and self.high < 0

    @property
    def more_tasks(self) -> int | None:
        """Further tasks that would show a gain like this with a probability of 80 %; None if only other tables would.

        0 if it is shown, or is a loss.
        """
        gain = self.mean_gain or 0.0
        if self.over != "tasks" or gain <= 0 or self.error is None or self.is_significant():
            return 0
        count: float = math.inf
        for _ in range(3):  # Student's quantiles depend on the count
            wanted = -math.log1p(-gain) / sum(scipy.stats.t.ppf([1 - _TAIL, _POWER], count - 1))
            if wanted <= self.tables_error:
                return None
            of_tasks = (self.error**2 - self.tables_error**2) / (wanted**2 - self.tables_error**2)
            count = max(self.num_tasks + 1, math.ceil(self.num_tasks * of_tasks))
        return int(count) - self.num_tasks

    def is_significant(self, false_alarms: float = _TAIL) -> bool:
        """Whether an equal placer would seem this much cheaper with at most this probability; fitting alone is enough."""
        if self.mean_gain is None:
            return self.fits
        if self.error is None:
            return False
        return -math.log1p(-self.mean_gain) > self.quantile(1 - false_alarms) * self.error

    def quantile(self, level: float) -> float:
        """Of Student's t."""
        return float(scipy.stats.t.ppf(level, self.num_tasks - 1))


def evaluate(
    placers: Mapping[str, Placer],
    tasks: Sequence[PlacementTask],
    measure: Callable[..., CostSample],
    *,
    predict: Callable[[str, PlacementTask, Placement], DeviceCosts] | None,
    seed: int,
    optional: Collection[str] = (),
    reference: tuple[PlacementTask, Placement] | None = None,
) -> list[EvaluationRow]:
    """Place every task with all placers, then measure task by task.

    The placements of a task are measured next to each other, in rounds, each in a new random order, so that neither a drift
    of the machine's speed nor a burst favours a placer. Placers that agree on a placement share its measurement. A placement
    may use any sharding type that the testbed measures, as a current plan may, though constraints keep searches from it.

    Args:
        measure: measures a task and placement in a round of this number, from 0; its keyword `reference` counts measurements
            of the reference placement, 0 for others.
        predict: costs of a placement by a placer, which is named first; None if nothing predicts them.
        seed: of the order of measuring.
        optional: placers that are left out if they cannot fit a task; another placer fails on this task.
        reference: measured every so often, to show how steady the machine is.

    Raises:
        NoPlacementError: no placer can fit a task; before anything is measured.
        ValueError: a placer returned an illegal placement; before anything is measured.
    """
    placed, rows = _place(placers, tasks, optional), list[EvaluationRow]()
    generator = torch.Generator().manual_seed(seed)
    for number, task in enumerate(tasks):
        of_task = [row for row in placed if row.task is task]
        distinct = dict.fromkeys(row.placement for row in of_task if row.placement)
        any_type = with_all_types(task)
        group = [partial(measure, any_type, placement, reference=0) for placement in distinct]
        if reference is not None and number % REFERENCE_EVERY == 0:
            group.append(partial(measure, *reference, reference=number + 1))
        measured = dict(zip(distinct, measure_in_rounds(group, [[] for _ in group], generator), strict=False))
        for row in of_task:
            if placement := row.placement:
                best, each = least(measured[placement]), tuple(sample.overall_ms for sample in measured[placement])
                row = replace(row, overall_ms=best.overall_ms, costs=best.costs, rounds_ms=each)
                if predict:
                    predicted_ms = float(predict(row.placer, task, placement).overall_ms())
                    row = replace(row, predicted_ms=predicted_ms)
            rows.append(row)
    return rows


def _place(
    placers: Mapping[str, Placer], tasks: Sequence[PlacementTask], optional: Collection[str]
) -> list[EvaluationRow]:
    """All placers on all tasks, as if nothing fitted when it was measured."""
    placed, left_out = [], set()
    for task in tasks:
        refusals: list[NoPlacementError] = []
        for name, placer in placers.items():
            began, placement = time.perf_counter(), None
            try:
                placement = placer.place(task)
            except NoPlacementError as error:
                refusals.append(error)
                left_out |= {name}.intersection(optional)
            took_ms = 1000 * (time.perf_counter() - began)
            nothing = DeviceCosts(torch.zeros(task.num_devices, len(PHASES)))
            placed.append(EvaluationRow(name, task, placement, math.inf, math.nan, took_ms, nothing))
            if placement and (broken := violation(with_all_types(task), placement, is_measured=True)):
                raise ValueError(f"placer {name!r} placed {task.name} illegally: {broken}; leave it out")
        if len(refusals) == len(placers):
            raise refusals[0]
    return [row for row in placed if row.placer not in left_out]


def paired_comparison(
    rows: Sequence[EvaluationRow], placer: str, reference: str, over: Over = "tasks"
) -> PairedComparison:
    """Gain of `placer` over `reference` on the tasks that both have.

    Tasks of the same tables are one task, whose gain is the mean of theirs.

    Raises:
        ValueError: they have no task in common.
    """
    ours, other = ({row.task.name: row for row in rows if row.placer == name} for name in (placer, reference))
    pairs = [(row, other[task]) for task, row in ours.items() if task in other]
    if not pairs:
        raise ValueError(f"{placer!r} and {reference!r} have no task in common; evaluate both on the same tasks")
    facts: dict[str, Any] = {"num_tasks": len({frozenset(row.task.tables.names) for row, _ in pairs}), "over": over}
    if not all(row.fits for pair in pairs for row in pair):
        return PairedComparison(fits=all(row.fits for row, _ in pairs), **facts)
    of_tables: dict[frozenset[str], list[float]] = defaultdict(list)
    for row, reference_row in pairs:
        rounds = zip(row.rounds_ms, reference_row.rounds_ms, strict=True)
        both = [math.log(b / a) for a, b in rounds if math.isfinite(a) and math.isfinite(b)]
        gain = median(both or [math.log(reference_row.overall_ms / row.overall_ms)])
        of_tables[frozenset(row.task.tables.names)].append(gain)
    gains, tables = [fmean(same) for same in of_tables.values()], list(of_tables) if over == "tasks" else None
    if len(gains) == 1:
        return PairedComparison(fits=True, mean_gain=_saved(gains[0]), **facts)
    error, tables_error = mean_error(gains, tables)
    return PairedComparison.of(fmean(gains), error, tables_error=tables_error, **facts)


def mean_error(gains: Sequence[float], tables: Sequence[frozenset[str]] | None = None) -> tuple[float, float]:
    """Standard error of the mean of gains, and the part of it that more of them would not lower.

    Args:
        gains: of one task each.
        tables: names of the tables of each task; the mean is then over tasks of other tables. Tasks that share tables are
            alike: their gains correlate by `TABLES_SHARE` times the share of tables in common. So their spread shows less
            than the whole variance, and their mean varies more than that of independent tasks.
    """
    variance = float(np.var(gains, ddof=1))
    if tables is None:
        return math.sqrt(variance / len(gains)), 0.0
    shared = fmean(len(a & b) / math.sqrt(len(a) * len(b)) for a, b in combinations(tables, 2))
    variance /= 1 - TABLES_SHARE * shared
    of_tables = variance * TABLES_SHARE * shared
    return math.sqrt(of_tables + (variance - of_tables) / len(gains)), math.sqrt(of_tables)


def _saved(log_ratio: float) -> float:
    return -math.expm1(-log_ratio)


def with_all_types(task: PlacementTask) -> PlacementTask:
    """The task, also for placements of sharding types that its constraints do not allow."""
    return replace(task, constraints=replace(task.constraints, sharding_types=SHARDING_TYPES, caching=True))


def best_baseline(rows: Sequence[EvaluationRow]) -> str:
    """The heuristic with the lowest mean measured cost."""
    costs_ms = {name: [row.overall_ms for row in rows if row.placer == name] for name in HEURISTICS}
    return min((name for name in HEURISTICS if costs_ms[name]), key=lambda name: fmean(costs_ms[name]))


def placement_identity(task: PlacementTask, placement: Placement) -> str:
    """Identifies a placement of these tables by which shards share a device; device numbers do not matter."""
    shards, held = Shards.of(task, placement), defaultdict[int, list[Any]](list)
    parts = torch.cat([shards.tables.column_ranges, shards.rows], dim=1).tolist()
    for name, part, device in zip(shards.tables.names, parts, shards.device.tolist(), strict=True):
        held[device].append((name, part))
    return repr(sorted(map(sorted, held.values())))


def prediction_error(rows: Sequence[EvaluationRow]) -> float:
    """Mean relative error of the predicted overall cost; NaN without rows.

    A placement that several placers share counts once. One that did not fit does not count.
    """
    distinct = {(row.task.name, *row.task.tables.sizes, row.placement): row for row in rows if row.fits}.values()
    return mean_relative_error([row.predicted_ms for row in distinct], [row.overall_ms for row in distinct])
