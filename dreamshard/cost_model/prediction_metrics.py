"""How predicted costs compare with measured ones."""

import math
from collections.abc import Hashable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

_LEAST_MEASURED = 1e-9  # keeps the relative error of a cost of 0 finite


def mean_relative_error(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Mean absolute error relative to the measured value (MAPE, as a fraction); NaN for no values."""
    expected = np.asarray(measured, np.float64)
    if expected.size == 0:
        return math.nan
    errors = np.abs(np.asarray(predicted, np.float64) - expected) / np.maximum(expected, _LEAST_MEASURED)
    return float(errors.mean())


def rank_correlation(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Spearman's; NaN where one side is constant or has fewer than two values."""
    sides = np.asarray(predicted), np.asarray(measured)
    if any(np.unique(side).size < 2 for side in sides):
        return math.nan
    return float(scipy.stats.spearmanr(*sides).statistic)


def rank_correlations(
    predicted: NDArray[np.floating], measured: NDArray[np.floating], names: Sequence[Hashable]
) -> list[float]:
    """Rank correlation among the values of each name that has at least 3, since ranks of fewer mean little."""
    groups: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name, []).append(index)
    return [rank_correlation(predicted[group], measured[group]) for group in groups.values() if len(group) > 2]
