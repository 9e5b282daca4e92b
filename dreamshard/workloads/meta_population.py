"""The tables of Meta's data sets, reconstructed: sizes, pooling factors, and numbers of rows per access count.

Rows and pooling follow AutoShard's extremes and means, spread over the tables by a low-discrepancy sequence, as is each
table's share of hot rows. Lookups per table and bin are fitted to the published totals and histograms by iterative
proportional fitting (Deming and Stephan, 1940).
"""

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dreamshard.tables import NUM_BINS
from dreamshard.workloads.meta_statistics import (
    MAX_POOLING,
    MAX_ROWS,
    MEAN_ROWS,
    PublishedStatistics,
    Vector,
    count_laws,
    published_statistics,
)

Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

HEAT_SPREAD = 0.35
"""Standard deviation over tables of the tilt of lookups towards hot bins, in log odds per bin."""
LOG_POOLING_SPREAD = 1.6
"""Standard deviation of log pooling factors before they saturate: a median of about 4 for a mean of 16."""
ROWS_PER_POOLING = 8
"""Least rows per unit of pooling factor; a smaller table would look each row up many times per sample."""
FULLEST = 0.9
"""Largest share of a table's rows that a batch looks up, as far as fitted."""
FIT_ROUNDS = 60


@dataclass(frozen=True)
class Population:
    """Metadata of all tables of one data set; `t` is a table's position.

    Attributes:
        batch_size: `B` of the full batch.
        rows: `[T]` hash sizes.
        rows_by_bin: `[T, 17]` number of rows that the full batch looks up (0,1], (1,2], (2,4] ... times.
        shares: `[T, 36]` each table's part of the published figures, scaled to mean 1 for totals. A subset of the tables
            that preserves the means of these preserves the totals and both histograms.
    """

    batch_size: int
    rows: Counts
    rows_by_bin: Counts
    shares: Matrix


@cache
def population(name: str) -> Population:
    """The tables of `meta-dlrm-2021` or `meta-dlrm-2022`; deterministic."""
    stats = published_statistics(name)
    means = np.asarray([law.mean for law in count_laws(name)])  # [17]
    rows, lookups = _sizes(stats)
    fitted = _fit(stats, rows, lookups, means)  # [T, 17]
    rows_by_bin = _whole_rows(fitted, means)
    rows = np.maximum(rows, rows_by_bin.sum(axis=1))
    by_bin = rows_by_bin * means  # [T, 17] lookups
    shares = by_bin / by_bin.sum(), rows_by_bin / rows_by_bin.sum()
    totals = [counts.sum(axis=1, keepdims=True) / counts.sum() for counts in (by_bin, rows_by_bin)]
    return Population(
        stats.batch_size, rows, rows_by_bin, np.concatenate([*totals, *shares], axis=1) * stats.num_tables
    )


def _sizes(stats: PublishedStatistics) -> tuple[Counts, Vector]:
    """`[T]` rows and `[T]` lookups per table, with the published means and extremes."""
    num_tables = stats.num_tables
    logs = _normal_scores(num_tables, 0) * LOG_POOLING_SPREAD
    target = stats.lookups / stats.batch_size / num_tables
    left, right = -10.0, 10.0
    for _ in range(60):  # bisection on the log median
        middle = (left + right) / 2
        pooling = np.exp(logs + middle)
        pooling /= pooling + MAX_POOLING  # saturates, the largest at MAX_POOLING
        pooling *= MAX_POOLING / pooling.max()
        left, right = (middle, right) if pooling.mean() < target else (left, middle)
    pooling[pooling.argmin()] = 0.0

    levels = _ranks(num_tables, 1) / (num_tables - 1)  # exactly 0 to 1
    left, right = 0.1, 20.0
    for _ in range(60):  # bisection on the exponent
        middle = (left + right) / 2
        left, right = (middle, right) if (levels**middle).mean() * MAX_ROWS > MEAN_ROWS else (left, middle)
    rows = np.round(MAX_ROWS * levels**left)
    idle, smallest = int(pooling.argmin()), int(rows.argmin())
    rows[[idle, smallest]] = rows[[smallest, idle]]
    rows = np.maximum(rows, np.ceil(ROWS_PER_POOLING * pooling).clip(min=1))
    return rows.astype(np.int64), pooling * stats.batch_size


def _ranks(num_tables: int, axis: int) -> npt.NDArray[np.int64]:
    """Ranks of one axis of the R3 sequence (Roberts, 2018), whose points spread evenly over all axes together."""
    root = 1.2207440846057596  # x ** 4 = x + 1
    points = np.arange(1, num_tables + 1) * root ** -(axis + 1) % 1
    return points.argsort().argsort()


def _normal_scores(num_tables: int, axis: int) -> Vector:
    """Normal quantiles of the ranks."""
    return np.asarray([NormalDist().inv_cdf(level) for level in (_ranks(num_tables, axis) + 0.5) / num_tables])


def _fit(stats: PublishedStatistics, rows: Counts, lookups: Vector, means: Vector) -> Matrix:
    """`[T, 17]` lookups per table and bin: rows sum to `lookups`, columns to the published share of all lookups."""
    heat = _normal_scores(len(rows), 2)
    bins = np.arange(NUM_BINS)
    columns = lookups.sum() * stats.lookup_share / stats.lookup_share.sum()
    allowed = (means <= lookups[:, None] / 4) | (bins == 0)  # bins hotter than the table are empty
    fitted: Matrix = columns * np.exp(HEAT_SPREAD * heat[:, None] * (bins - NUM_BINS / 2)) * allowed
    for _ in range(FIT_ROUNDS):
        fitted *= columns / fitted.sum(axis=0)
        fitted *= (lookups / fitted.sum(axis=1).clip(min=1e-9))[:, None]
        fitted = _within_rows(fitted, (FULLEST * rows).astype(np.float64), means)
    return fitted


def _within_rows(fitted: Matrix, room: Vector, means: Vector) -> Matrix:
    """Tilt tables with more distinct rows than `room` towards hotter bins; their lookups stay the same."""
    crowded = np.flatnonzero((fitted / means).sum(axis=1) > room)
    if not len(crowded):
        return fitted
    part, totals = fitted[crowded], fitted[crowded].sum(axis=1, keepdims=True)
    low, high = np.zeros((len(crowded), 1)), np.full((len(crowded), 1), 60.0)
    for _ in range(40):  # bisection on the tilt by 1 / mean in logs
        middle = (low + high) / 2
        tilted = part * np.exp(-middle * (1 / means) ** 0.25)
        tilted *= totals / tilted.sum(axis=1, keepdims=True).clip(min=1e-9)
        over = ((tilted / means).sum(axis=1) > room[crowded])[:, None]
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    result = fitted.copy()
    result[crowded] = tilted
    return result


def _whole_rows(fitted: Matrix, means: Vector) -> Counts:
    """Whole numbers of rows per table and bin; lookups left over by rounding go to the next colder bin."""
    rows_by_bin = np.zeros(fitted.shape, dtype=np.int64)
    carry = np.zeros(len(fitted))
    for j in reversed(range(fitted.shape[1])):
        wanted = fitted[:, j] + carry
        dither = np.arange(1, len(fitted) + 1) * (0.6180339887 + 0.1 * j) % 1  # keeps rounding unbiased in each bin
        rows_by_bin[:, j] = np.floor(wanted.clip(min=0) / means[j] + (0.5 if j == 0 else dither))
        carry = np.where(fitted.sum(axis=1) > 0, wanted - rows_by_bin[:, j] * means[j], 0.0)
    rows_by_bin[fitted.sum(axis=1) == 0] = 0
    return rows_by_bin
