"""A table after its features have drifted: more or fewer rows and lookups, derived from the lookups that it has now."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dreamshard.tables import Tables
from dreamshard.workloads.lookups import Lookups, WorkloadTable, index_dtype
from dreamshard.workloads.workload import name_seed


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a table is from the one it derives from.

    Attributes:
        table: name of that table.
        rows: hash size relative to its.
        pooling: lookups per sample relative to its.
    """

    table: str
    rows: float
    pooling: float

    @property
    def name(self) -> str:
        """The drifted table's name, which says all that its content depends on besides the table."""
        return f"{self.table} (rows x{self.rows:.2f}, lookups x{self.pooling:.2f})"


def drifted(table: WorkloadTable, drift: Drift) -> WorkloadTable:
    """The table with other lookups.

    More rows: each row's lookups are spread over the rows that replace it. Fewer rows: neighbours share a row, as ids do in
    a smaller hash table. Fewer lookups: evenly spaced ones are left out. More lookups: other samples' are added.
    """
    rows = max(1, round(table.rows * drift.rows))
    offsets = np.floor(table.lookups.offsets.numpy() * drift.pooling + 1e-9).astype(np.int64)
    indices = _resampled(table.lookups.indices.numpy(), int(offsets[-1]), drift.pooling)
    first = np.floor(indices.astype(np.float64) * rows / table.rows).astype(np.int64)  # of the rows that replace it
    after = np.floor((indices.astype(np.float64) + 1) * rows / table.rows).astype(np.int64)
    generator = np.random.default_rng(name_seed(drift.name))
    spread = (generator.random(len(indices)) * np.maximum(after - first, 1)).astype(np.int64)
    moved = torch.from_numpy(np.minimum(first + spread, rows - 1)).to(index_dtype(rows))
    return WorkloadTable(drift.name, rows, table.dim, Lookups(moved, torch.from_numpy(offsets)))


def drifts_of(tables: Tables, *, seed: int, most_lookups: int) -> tuple[Drift, ...]:
    """A plausible drift of each table over weeks, in the tables' order.

    Hash sizes grow by up to 30 %, since ids are added. Pooling factors move both ways with a standard deviation of 15 %, so
    that many pass the 10 % at which a retraining starts; a table of one lookup per sample keeps that one.

    Args:
        most_lookups: of all drifted tables together; the tables are taken in random order until they are used up.
    """
    generator = np.random.default_rng([seed, 5])

    def draw() -> tuple[float, float]:
        return generator.uniform(1.0, 1.3), np.exp(0.15 * np.clip(generator.standard_normal(), -2, 2))

    found = _drawn(tables, generator, len(tables), most_lookups, draw)
    return tuple(found[t] for t in sorted(found))


def additions_to(tables: Tables, count: int, *, seed: int, most_lookups: int) -> tuple[Drift, ...]:
    """New features: each resembles a table of the model, with 30 to 90 % of its rows and up to twice its lookups."""
    generator = np.random.default_rng([seed, 6])

    def draw() -> tuple[float, float]:
        return generator.uniform(0.3, 0.9), np.exp(generator.uniform(-0.7, 0.7))

    return tuple(_drawn(tables, generator, count, most_lookups, draw).values())


def _drawn(
    tables: Tables,
    generator: np.random.Generator,
    count: int,
    most_lookups: int,
    draw: Callable[[], tuple[float, float]],
) -> dict[int, Drift]:
    """At most `count` drifts, and `most_lookups` lookups, by the table's position, in random order."""
    found: dict[int, Drift] = {}
    for t in generator.permutation(len(tables)).tolist():
        rows, pooling = map(float, draw())
        pooling = pooling if float(tables.pooling_factor[t]) > 1 else 1.0
        lookups = int(tables.lookups[t]) * pooling
        if len(found) < count and most_lookups >= lookups:
            most_lookups -= round(lookups)
            found[t] = Drift(table=tables.names[t], rows=round(rows, 2), pooling=round(pooling, 2))
    return found


def _resampled(indices: npt.NDArray[np.integer], count: int, pooling: float) -> npt.NDArray[np.integer]:
    """`[N']` lookups in the order of the samples: evenly spaced ones of `indices`, or all and some of other samples."""
    if not len(indices):
        return indices
    source = np.minimum((np.arange(count) / pooling).astype(np.int64), len(indices) - 1)
    repeated = np.diff(source, prepend=-1) == 0
    source[repeated] = (source[repeated] + len(indices) // 2) % len(indices)
    return indices[source]
