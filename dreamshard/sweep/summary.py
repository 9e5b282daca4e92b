"""Figures of a sweep: gains with 95 % intervals over tasks and seeds together.

A gain is over the best rule of thumb, which is chosen on the very tasks, in its own favour. Tasks and seeds are resampled
independently (a two-way bootstrap), since all seeds place the same tasks. A task without a placement that fits counts as
infinitely expensive, so one such task leaves a placer without a mean.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dreamshard.baselines import RULES_OF_THUMB
from dreamshard.sweep.cell import CellResult

_DRAWS = 4000
Costs = NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Setting:
    """Results that are comparable: the same tasks, and trainings that differ in their seed only."""

    experiment: str
    source: str
    dims: str
    trained: str
    placed: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Share of the cost that is saved, with its 95 % interval; all None where a placement of either did not fit."""

    mean: float | None
    low: float | None
    high: float | None

    @property
    def is_beyond_doubt(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One placer in one setting.

    Attributes:
        mean_ms: mean cost over tasks and seeds; None where a placement did not fit.
        gain: over the best rule of thumb, which is called `best_rule`.
        failures: tasks without a placement that fits, over all seeds.
        shared: tasks whose tables were split by columns, over all seeds.
        error: mean relative error of the placer's own predictions of its placements; None for one that predicts nothing.
        predicted_over_measured: mean of predicted over true cost; below 1 where a search exploits errors.
        place_ms: median CPU time to place.
        learning_s: mean CPU time of learning.
        measurements: placements that it learnt from.
    """

    setting: Setting
    placer: str
    num_tasks: int
    num_seeds: int
    mean_ms: float | None
    best_rule: str
    gain: Gain
    failures: int
    shared: int
    error: float | None
    predicted_over_measured: float | None
    place_ms: float
    learning_s: float
    measurements: int


def summarise(results: Sequence[CellResult]) -> list[Figure]:
    """One figure for each placer in each setting, in the order of the results."""
    by_setting: dict[Setting, dict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        setting = Setting(each.experiment, each.source, each.dims, each.trained, each.placed, each.budget)
        by_setting[setting][each.placer].append(each)
    return [figure for setting, rows in by_setting.items() for figure in _of_setting(setting, rows)]


def gain_over(costs: Costs, reference: Costs) -> Gain:
    """What `costs` `[S, T]` of seeds and tasks save over `reference` `[S, T]`; infinite where nothing fitted."""
    if not (np.isfinite(costs).all() and np.isfinite(reference).all()):
        return Gain(mean=None, low=None, high=None)
    generator, (seeds, tasks) = np.random.default_rng(0), costs.shape
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _DRAWS)  # [N, S]
    of_tasks = generator.multinomial(tasks, np.full(tasks, 1 / tasks), _DRAWS)  # [N, T]
    drawn, against = (np.einsum("ns,st,nt->n", of_seeds, each, of_tasks) for each in (costs, reference))
    low, high = np.quantile(1 - drawn / against, (0.025, 0.975))
    return Gain(mean=float(1 - costs.mean() / reference.mean()), low=float(low), high=float(high))


def costs_of(rows: Sequence[CellResult]) -> Costs:
    """`[S, T]` true costs of one placer, infinite where no placement fitted; tasks in the order of their names."""
    seeds = sorted({row.seed for row in rows})
    tasks = sorted({row.task for row in rows})
    known = {(row.seed, row.task): row.overall_ms for row in rows}
    missing = [(seed, task) for seed in seeds for task in tasks if (seed, task) not in known]
    if missing:
        raise ValueError(
            f"{rows[0].placer} has no result of task {missing[0][1]} with seed {missing[0][0]}, so its seeds did not place "
            "the same tasks and cannot be averaged; run the sweep to its end"
        )
    return np.array([[np.inf if (ms := known[seed, task]) is None else ms for task in tasks] for seed in seeds])


def _of_setting(setting: Setting, rows: Mapping[str, Sequence[CellResult]]) -> list[Figure]:
    costs = {placer: costs_of(own) for placer, own in rows.items()}
    rules = [name for name in RULES_OF_THUMB if name in costs]
    best_rule = min(rules, key=lambda name: float(costs[name].mean()))
    figures = []
    for placer, own in rows.items():
        cost = costs[placer]
        predicted = [(row.predicted_ms, row.overall_ms) for row in own if row.predicted_ms and row.overall_ms]
        ratios = np.array([mine / true for mine, true in predicted])
        figures.append(
            Figure(
                setting=setting,
                placer=placer,
                num_tasks=cost.shape[1],
                num_seeds=cost.shape[0],
                mean_ms=float(cost.mean()) if np.isfinite(cost).all() else None,
                best_rule=best_rule,
                gain=gain_over(cost, costs[best_rule]),
                failures=int(np.isinf(cost).sum()),
                shared=sum(row.has_shards for row in own),
                error=float(np.abs(ratios - 1).mean()) if len(ratios) else None,
                predicted_over_measured=float(ratios.mean()) if len(ratios) else None,
                place_ms=float(np.median([row.place_ms for row in own])),
                learning_s=float(np.mean([row.learning_s for row in own])),
                measurements=max(row.measurements for row in own),
            )
        )
    return figures
