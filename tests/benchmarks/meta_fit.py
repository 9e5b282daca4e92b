"""Fits the tables of Meta's data sets to what Meta published of them, and writes them as `workloads/data/<name>.parquet`.

    python -m tests.benchmarks.meta_fit

Sources: `*_locality_stats.txt` of github.com/facebookresearch/dlrm_datasets; rows and pooling factors of the 2021 set from
AutoShard (Zha et al., KDD 2022, arXiv 2208.06399). The 2022 set's rows are not published and are assumed to be distributed
as in 2021. Rows and pooling follow AutoShard's extremes and means, spread over the tables by a low-discrepancy sequence, as
is each table's share of hot rows. Lookups per table and bin are fitted to the published totals and histograms by iterative
proportional fitting (Deming and Stephan, 1940).
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.tables import NUM_BINS
from dreamshard.workloads.meta import Counts, Matrix, Population, Vector, count_law
from dreamshard.workloads.workload import DATA, META_WORKLOADS

MAX_ROWS, MEAN_ROWS = 12_543_670, 4_107_458
MAX_POOLING = 193.0

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
class PublishedStatistics:
    """Totals and histograms of one batch over all tables.

    Attributes:
        lookups: total over all tables.
        unique_rows: distinct rows looked up, total over all tables.
        unique_share: `[17]` share of the distinct rows per access-count bin.
        lookup_share: `[17]` share of the lookups per access-count bin.
    """

    num_tables: int
    batch_size: int
    lookups: int
    unique_rows: int
    unique_share: Vector
    lookup_share: Vector


@cache
def published_statistics(name: str) -> PublishedStatistics:
    """Statistics of the first published batch of `meta-dlrm-2021` or `meta-dlrm-2022`."""
    first = (Path(__file__).parent / "data" / f"{name}-locality_stats.txt").read_text().strip().split("\n\n")[0]
    tables, batch = re.findall(r"_t(\d+)_bs(\d+)", first)[0]
    shares = [float(share) for share in re.findall(r"^\(.*: (\d\.\d+)$", first, flags=re.MULTILINE)]
    return PublishedStatistics(
        num_tables=int(tables),
        batch_size=int(batch),
        lookups=int(re.findall(r"# of indices: (\d+)", first)[0]),
        unique_rows=int(re.findall(r"# of unique cols: (\d+)", first)[0]),
        unique_share=np.asarray(shares[:NUM_BINS]),
        lookup_share=np.asarray(shares[NUM_BINS:]),
    )


def fitted_population(name: str) -> tuple[Population, list[float]]:
    """The tables of a data set, and the tilts of their laws of access counts; deterministic."""
    stats = published_statistics(name)
    tilts = [_tilt(stats, j) for j in range(NUM_BINS)]
    laws = tuple(count_law(j, stats.batch_size, tilt) for j, tilt in enumerate(tilts))
    means = np.asarray([law.mean for law in laws])  # [17]
    rows, lookups = _sizes(stats)
    rows_by_bin = _whole_rows(_fit(stats, rows, lookups, means), means)
    return Population(stats.batch_size, np.maximum(rows, rows_by_bin.sum(axis=1)), rows_by_bin, laws), tilts


def write(name: str) -> None:
    """Write `workloads/data/<name>.parquet`."""
    tables, tilts = fitted_population(name)
    columns = {"rows": tables.rows} | {f"rows_in_bin_{j}": tables.rows_by_bin[:, j] for j in range(NUM_BINS)}
    about = json.dumps({"batch_size": tables.batch_size, "tilts": tilts})
    table = pa.table({column: pa.array(values.astype(np.int32)) for column, values in columns.items()})
    pq.write_table(table.replace_schema_metadata({"dreamshard": about}), DATA / f"{name}.parquet", compression="zstd")


def _tilt(stats: PublishedStatistics, j: int) -> float:
    """The tilt of a bin's law of access counts.

    A bin's mean count is the ratio of the two histograms if the three published digits suffice, else the mean of a density
    proportional to count ** -2, which has equal shares of lookups per bin.
    """
    low = 0 if j == 0 else 2 ** (j - 1)
    high = 2**j if j < NUM_BINS - 1 else max(2**j, stats.batch_size)
    counts = np.arange(low + 1, high + 1, dtype=np.float64)
    mean = float((1 / counts).sum() / (1 / counts**2).sum())
    if stats.unique_share[j] >= 0.01:
        ratio = stats.lookups * stats.lookup_share[j] / (stats.unique_rows * stats.unique_share[j])
        mean = float(np.clip(ratio, counts[0], counts[-1]))
    left, right = -60.0, 60.0
    for _ in range(60):  # bisection: a larger tilt lowers the mean
        tilt = (left + right) / 2
        left, right = (tilt, right) if count_law(j, stats.batch_size, tilt).mean > mean else (left, tilt)
    return tilt


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


if __name__ == "__main__":
    for each in META_WORKLOADS:
        write(each)
