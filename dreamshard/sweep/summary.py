"""Figures of a sweep: gains with 95 % intervals over tasks and seeds together.

A gain is over the best rule of thumb, which is chosen on the very tasks, in its own favour; for compute alone, which
AutoShard minimises, over the rule with the least compute. Tasks and seeds are resampled
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

    @classmethod
    def of(cls, result: CellResult) -> "Setting":
        """The setting of a result."""
        return cls(result.experiment, result.source, result.dims, result.trained, result.placed, result.budget)


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
        compute_gain: the same of the largest compute of a device, over the rule that is best in that.
        failures: tasks without a placement that fits, over all seeds.
        shared: tasks whose tables were split by columns, over all seeds.
        error: mean relative error of the placer's own predictions of its placements; None for one that predicts nothing.
        predicted_over_true: mean of the cost that dreamshard's network predicts over the true cost; below that of other
            placers where a search exploits the network's errors. None for a cell without dreamshard.
        noise: mean difference of two measurements of one placement, as a share of its cost; None for exact costs.
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
    compute_gain: Gain
    failures: int
    shared: int
    error: float | None
    predicted_over_true: float | None
    noise: float | None
    place_ms: float
    learning_s: float
    measurements: int


def summarise(results: Sequence[CellResult]) -> list[Figure]:
    """One figure for each placer in each setting, in the order of the results."""
    by_setting: dict[Setting, dict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        by_setting[Setting.of(each)][each.placer].append(each)
    return [figure for setting, rows in by_setting.items() for figure in _of_setting(setting, rows)]


def gain_over(costs: Costs, reference: Costs) -> Gain:
    """What `costs` `[S, T]` of seeds and tasks save over `reference` `[S, T]`; infinite where nothing fitted."""
    if not (np.isfinite(costs).all() and np.isfinite(reference).all()):
        return Gain(mean=None, low=None, high=None)
    generator, (seeds, tasks) = np.random.default_rng(0), costs.shape
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _DRAWS)  # [N, S]
    of_tasks = generator.multinomial(tasks, np.full(tasks, 1 / tasks), _DRAWS)  # [N, T]
    drawn, against = (((of_seeds @ each) * of_tasks).sum(axis=1) for each in (costs, reference))  # [N]
    low, high = np.quantile(1 - drawn / against, (0.025, 0.975))
    return Gain(mean=float(1 - costs.mean() / reference.mean()), low=float(low), high=float(high))


def costs_of(rows: Sequence[CellResult], *, compute: bool = False) -> Costs:
    """`[S, T]` true costs of one placer, infinite where no placement fitted; tasks in the order of their names.

    Args:
        compute: the largest compute of a device instead of the overall cost.

    Raises:
        ValueError: seeds did not place the same tasks.
    """
    seeds = sorted({row.seed for row in rows})
    tasks = sorted({row.task for row in rows})
    known = {(row.seed, row.task): row.compute_ms if compute else row.overall_ms for row in rows}
    missing = [(seed, task) for seed in seeds for task in tasks if (seed, task) not in known]
    if missing:
        raise ValueError(
            f"{rows[0].placer} has no result of task {missing[0][1]} with seed {missing[0][0]}, so its seeds did not place "
            "the same tasks and cannot be averaged; run the sweep to its end"
        )
    return np.array([[np.inf if (ms := known[seed, task]) is None else ms for task in tasks] for seed in seeds])


def _of_setting(setting: Setting, rows: Mapping[str, Sequence[CellResult]]) -> list[Figure]:
    costs = {placer: costs_of(own) for placer, own in rows.items()}
    computes = {placer: costs_of(own, compute=True) for placer, own in rows.items()}
    best_rule, least_compute = _best_rule(costs), _best_rule(computes)
    figures = []
    for placer, own in rows.items():
        cost = costs[placer]
        fitted = [(row, row.overall_ms) for row in own if row.overall_ms is not None]
        errors = [abs(row.predicted_ms / true - 1) for row, true in fitted if row.predicted_ms is not None]
        ratios = [row.dreamshard_ms / true for row, true in fitted if row.dreamshard_ms is not None]
        pairs = [(row.first_ms, row.second_ms, true) for row, true in fitted]
        noise = [abs(one - two) / true for one, two, true in pairs if one is not None and two is not None]
        figures.append(
            Figure(
                setting=setting,
                placer=placer,
                num_tasks=cost.shape[1],
                num_seeds=cost.shape[0],
                mean_ms=float(cost.mean()) if np.isfinite(cost).all() else None,
                best_rule=best_rule,
                gain=gain_over(cost, costs[best_rule]),
                compute_gain=gain_over(computes[placer], computes[least_compute]),
                failures=int(np.isinf(cost).sum()),
                shared=sum(row.has_shards for row in own),
                error=_mean(errors),
                predicted_over_true=_mean(ratios),
                noise=_mean(noise),
                place_ms=float(np.median([row.place_ms for row in own])),
                learning_s=float(np.mean([row.learning_s for row in own])),
                measurements=max(row.measurements for row in own),
            )
        )
    return figures


def _best_rule(costs: Mapping[str, Costs]) -> str:
    return min((name for name in RULES_OF_THUMB if name in costs), key=lambda name: float(costs[name].mean()))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
