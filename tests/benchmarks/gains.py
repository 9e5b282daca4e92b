"""Savings with 95 % intervals over tasks and seeds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 4000
Costs = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Share of the cost that is saved, with its 95 % interval; all None if a placement of either did not fit."""

    mean: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.mean is None or self.low is None or self.high is None:
            return "did not fit"
        return f"{100 * self.mean:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


def gain_over(costs: Costs, reference: Costs, *, nested: bool = False) -> Gain:
    """Savings of `costs` `[S, T]` of seeds and tasks over `reference` `[S, T]`; infinite if nothing fitted.

    The mean is of logarithms of ratios, as in `dreamshard.evaluation.PairedComparison`.

    If all seeds place the same tasks, seeds and tasks are resampled independently (a two-way bootstrap). If tasks are
    `nested`, so that each seed has tasks of its own, seeds are resampled, and the tasks of each.
    """
    if not (np.isfinite(costs).all() and np.isfinite(reference).all()):
        return Gain(mean=None, low=None, high=None)
    logs, generator, (seeds, tasks) = np.log(reference / costs), np.random.default_rng(0), costs.shape
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _DRAWS)[:, :, None]  # [N, S, 1]
    times = _DRAWS, seeds if nested else 1
    of_tasks = generator.multinomial(tasks, np.full(tasks, 1 / tasks), times)  # [N, S or 1, T]
    drawn = (of_seeds * of_tasks * logs).sum(axis=(1, 2)) / (seeds * tasks)  # [N]
    low, high = np.quantile(drawn, (0.025, 0.975))
    mean, low, high = (float(-np.expm1(-log)) for log in (logs.mean(), low, high))
    return Gain(mean=mean, low=low, high=high)
