"""Which tables to ingest, the `Workload` that every source gives, and generated lookups.

Lookups of lists follow a Zipf law, the power law on [1, rows + 1) rounded down: rank k has the share of the area under
x ** -alpha between k and k + 1. Its distribution function has a closed form for any number of rows.

Lookups of `meta-dlrm-2021` and `meta-dlrm-2022` fit the statistics that Meta published of its datasets, which `lookups.py`
reads themselves. `data/<name>.parquet` gives each table's rows, and how many of them a batch looks up once, twice, 3-4 times
and so on, as fitted once (`data/SOURCES.md`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pydantic
import torch
from jaxtyping import Float
from pydantic import Field

from dreamshard.files import MOST_ROWS, digest, json_digest
from dreamshard.tables import DIM_MULTIPLE, NUM_BINS, ModelTable, padded_dim
from dreamshard.workloads.lookups import Lookups, check_indices, index_dtype

DATA = Path(__file__).parent / "data"
META_WORKLOADS = ("meta-dlrm-2021", "meta-dlrm-2022")

MIXED_DIMS = (4, 8, 16, 32, 64, 128)
MIXED_WEIGHTS = (0.15, 0.20, 0.25, 0.20, 0.12, 0.08)
"""Narrow dims are common, wide ones rare, as in NVIDIA's and MLPerf's lists."""

UNKNOWN_DIM = 16
"""Of a source that knows no dims, if none is given."""

_MOST_DRAWN = 2**27  # lookups of a table, each of some 40 bytes while drawn: 2,048 per sample of 65,536


@cache
def bundled_lists() -> dict[str, Path]:
    """The bundled lists of tables by name; `data/SOURCES.md` gives their sources."""
    return {file.stem: file for file in sorted(DATA.glob("*.csv"))}


def bundled_workloads() -> list[str]:
    """Names of all bundled workloads: the lists, and Meta's two datasets, which are generated."""
    return sorted([*META_WORKLOADS, *bundled_lists()])


def list_file(source: str) -> Path | None:
    """The local file of a list of tables, bundled or the user's own; None for other sources."""
    path = bundled_lists().get(source, Path(source))
    return path if path.suffix in (".csv", ".parquet", ".json") and path.is_file() else None


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Positive = Annotated[int, Field(ge=1)]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Which tables to ingest.

    Attributes:
        source: a bundled workload's name; a path or URI (`s3://bucket/tables/`) of a file or folder, as `sources.py` reads
            them; or a function that returns a TorchRec model: `model.py:make_model`.
        batches: function that returns sample batches of the model's features, `data.py:make_batches`; None for Zipf lookups.
        num_tables: number of tables to take, or None for all.
        max_table_bytes: size limit of a table as fp32 weights, or None.
        batch_size: training samples per batch of lookups: the source's first ones, fewer if a file has fewer.
        dim: a multiple of 4 for every table; `mixed` to draw dims from 4 to 128 per table; None for the source's own.
        seed: of the draws of tables, dims and lookups.
    """

    source: str = "meta-dlrm-2021"
    batches: str | None = None
    num_tables: Positive | None = None
    max_table_bytes: Positive | None = None
    batch_size: Positive = 65_536
    dim: Annotated[int, Field(gt=0, multiple_of=DIM_MULTIPLE)] | Literal["mixed"] | None = "mixed"
    seed: int = 0


@dataclass(frozen=True)
class Workload:
    """Tables of one source and their lookups; nothing large is in memory until a table is read.

    Attributes:
        listed: the tables, in order.
        batch_size: samples of each table.
        recorded: lookups of a table's first samples; may be called in any order and from threads.
        tokens: JSON values by name of tables with recorded lookups, which change with these; others get Zipf lookups.
        notes: unused parts of a model, and assumptions.
    """

    config: WorkloadConfig
    listed: tuple[ModelTable, ...]
    batch_size: int
    recorded: Callable[[ModelTable, int], Lookups]
    tokens: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """Identity of all tables and their lookups."""
        return json_digest([self.fingerprint(t) for t in range(len(self.listed))])

    def fingerprint(self, position: int) -> str:
        """16 hexadecimal digits for a table and its lookups; nothing is drawn or decoded for it."""
        table = self.listed[position]
        origin = self.tokens.get(table.name) or ["zipf", table.pooling_factor, self.config.seed]
        return json_digest([table.name, table.rows, table.dim, table.poolings, self.batch_size, origin])

    def lookups(self, position: int) -> Lookups:
        """The lookups of a table; a ValueError says that they cannot be read, or one is outside the table."""
        table = self.listed[position]
        if table.name in self.tokens:
            lookups = self.recorded(table, self.batch_size)
            check_indices(lookups.indices, table.rows, f"table {table.name!r} of {Path(self.config.source).name}")
        else:
            lookups = zipf_lookups(table, self.batch_size, self.config.seed)
        return Lookups(lookups.indices.to(index_dtype(table.rows)), lookups.offsets)


def listed_workload(
    config: WorkloadConfig,
    listed: Sequence[ModelTable],
    recorded: Callable[[ModelTable, int], Lookups],
    tokens: Mapping[str, Any],
    num_samples: int,
    notes: tuple[str, ...] = (),
) -> Workload:
    """The tables of a list that the config asks for, with the dims it asks for, or their own as multiples of 4.

    A table's dim and lookups depend on its line alone. If any table was recorded, all have `num_samples` at most; other
    arguments are as the fields of `Workload`. A ValueError says that the list has too few tables.
    """

    def dim(table: ModelTable) -> int:
        if config.dim == "mixed":
            return int(generator_of(table.name, 1, config.seed).choice(MIXED_DIMS, p=MIXED_WEIGHTS))
        return config.dim or padded_dim(table.dim)

    limit = config.max_table_bytes or math.inf
    tables = [replace(table, dim=dim(table)) for table in listed]
    eligible = [table for table in tables if 4 * table.rows * table.dim <= limit]
    wanted = config.num_tables or max(1, len(eligible))
    if wanted > len(eligible):
        size = f" of at most {limit / 2**20:.4g} MiB as fp32" if config.max_table_bytes else ""
        raise ValueError(
            f"{config.source} has {len(eligible)} tables{size}, fewer than the {wanted} asked for; ask for fewer, or allow "
            "larger ones"
        )
    drawn = set(sorted(eligible, key=lambda table: generator_of(table.name, 2, config.seed).random())[:wanted])
    chosen = tuple(table for table in eligible if table in drawn)
    is_recorded = any(table.name in tokens for table in chosen)
    batch_size = min(config.batch_size, num_samples) if is_recorded else config.batch_size
    return Workload(config, chosen, batch_size, recorded, tokens, notes)


def zipf_lookups(table: ModelTable, batch_size: int, seed: int) -> Lookups:
    """Zipf lookups, `pooling_factor` per sample on average, 1 if unknown; a ValueError says that they are too many."""
    pooling, rows = 1.0 if table.pooling_factor is None else table.pooling_factor, table.rows
    if pooling * batch_size > _MOST_DRAWN:
        raise ValueError(
            f"table {table.name!r} has {pooling * batch_size:.3g} lookups in a batch of {batch_size:,}, more than "
            f"{_MOST_DRAWN:,}; correct pooling_factor {pooling:.4g}, or use a smaller batch"
        )
    generator = generator_of(table.name, 3, seed)
    offsets = np.floor(np.arange(batch_size + 1) * pooling + 1e-9).astype(np.int64)
    indices = scatter(draw_ranks(rows, int(offsets[-1]), generator), rows, generator)
    return Lookups(torch.from_numpy(indices), torch.from_numpy(offsets))


def generator_of(name: str, purpose: int, seed: int) -> np.random.Generator:
    """Draws for a table that are the same in every list."""
    return np.random.default_rng([seed, purpose, int(digest(name), 16)])


ALPHA = 1.05  # not 1
_WIDE = np.geomspace(1, MOST_ROWS, 938).astype(np.int64)  # each 3 % after the one before
_FIRST = np.union1d(np.arange(1, 129), _WIDE).astype(np.float64)
"""First ranks of groups whose rows count as alike: with these and the grid, shares of bins are exact to 1e-4."""
_GRID = 2**14


def draw_ranks(rows: int, num_lookups: int, generator: np.random.Generator) -> Ints:
    """Draw `num_lookups` ranks in 0..rows-1; rank 0 is the hottest."""
    draws = generator.random(num_lookups)
    ranks = (1 + draws * ((rows + 1.0) ** (1 - ALPHA) - 1)) ** (1 / (1 - ALPHA))
    return np.asarray(np.minimum(ranks.astype(np.int64) - 1, rows - 1))


def scatter(ranks: Ints, rows: int, generator: np.random.Generator) -> Ints:
    """Map ranks one to one to rows all over the table, as hashing does, by an affine permutation of 0..rows-1."""
    step = max(1, min(int(rows * (0.55 + 0.2 * generator.random())), 2**62 // rows))  # products fit 64 bits
    while math.gcd(step, rows) != 1:
        step += 1
    return (ranks * step + int(generator.integers(rows))) % rows


@cache
def expected_counts(rows: int, num_lookups: int) -> tuple[float, ...]:
    """`[17]` expected number of distinct rows per access-count bin; their sum is the expected distinct rows."""
    edges = np.append(_FIRST[: np.searchsorted(_FIRST, rows + 1)], rows + 1)
    ranks, powers = np.diff(edges), edges ** (1 - ALPHA)  # [G] rows of each group
    mean = num_lookups / (powers[-1] - 1) * np.diff(powers) / ranks  # [G] lookups of each row
    logs, shares = _shares_by_mean()
    at = (np.log(mean.clip(min=1e-15)) - logs[0]) / (logs[1] - logs[0])  # [G] on the grid
    below = at.astype(np.int64)
    upper = ranks * (mean > 0) * (at - below)
    return tuple(((ranks * (mean > 0) - upper) @ shares[below] + upper @ shares[below + 1]).tolist())


@cache
def _shares_by_mean() -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, "K 17"]]:
    """Logarithms of mean lookups of a row, and how likely the row is in each bin then, as lookups are Poisson."""
    logs = np.linspace(np.log(1e-16), np.log(1e13), _GRID)
    bounds = torch.tensor([0.0, *(2.0**j for j in range(NUM_BINS - 1))], dtype=torch.float64)[:, None]  # [17, 1]
    at_most = torch.special.gammaincc(bounds + 1, torch.from_numpy(np.exp(logs))[None])  # [17, K]
    shares = at_most.diff(dim=0, append=torch.ones_like(at_most[:1])).clamp(min=0)
    return logs, shares.T.contiguous().numpy()


@dataclass(frozen=True)
class Population:
    """All tables of one dataset; `t` is a table's position.

    Attributes:
        batch_size: `B` of the full batch.
        rows: `[T]` hash sizes.
        rows_by_bin: `[T, 17]` number of rows that the full batch looks up (0,1], (1,2], (2,4] ... times.
        laws: of the access counts within each bin, the probability of at most the lowest count, the next one and so on.
    """

    batch_size: int
    rows: Ints
    rows_by_bin: Ints
    laws: tuple[Floats, ...]


def draw_counts(j: int, law: Floats, num_rows: int, generator: np.random.Generator) -> Ints:
    """Ascending counts of `num_rows` rows of bin `j`, stratified over its law so that their mean is close to its mean."""
    levels = (np.arange(num_rows) + generator.random()) / max(1, num_rows)
    counts: Ints = 2**j // 2 + 1 + np.searchsorted(law[:-1], levels, side="right")
    return counts


@cache
def population(name: str) -> Population:
    """The tables of `meta-dlrm-2021` or `meta-dlrm-2022`.

    The law of a bin has the maximum entropy with its mean: probabilities fall exponentially, by a tilt from first to last.
    """
    table = pq.ParquetFile(DATA / f"{name}.parquet").read(use_threads=False)
    about = json.loads(table.schema.metadata[b"dreamshard"])
    names = "rows", *(f"rows_in_bin_{j}" for j in range(NUM_BINS))
    rows, *bins = (table[column].to_numpy().astype(np.int64) for column in names)
    laws = []
    for j, tilt in enumerate(about["tilts"]):
        high = 2**j if j < NUM_BINS - 1 else max(2**j, about["batch_size"])  # once per sample at most
        weights = np.exp(-tilt * np.linspace(0, 1, high - 2**j // 2) - max(0.0, -tilt))
        laws.append(np.cumsum(weights / weights.sum()))
    return Population(about["batch_size"], rows, np.stack(bins, axis=1), tuple(laws))


def open_meta(config: WorkloadConfig) -> Workload:
    """One of the two Meta workloads; `t0012` is at position 12 of its population. Meta published no dims.

    A smaller batch is the published one's first samples; a ValueError says that it is larger, or tables too few.
    """
    name, batch_size, seed = config.source, config.batch_size, config.seed
    tables = population(name)
    if batch_size > tables.batch_size:
        raise ValueError(f"{name} has one batch of {tables.batch_size} samples; ask for at most that, not {batch_size}")
    listed = [ModelTable(f"t{t:04}", rows, UNKNOWN_DIM) for t, rows in enumerate(tables.rows.tolist())]

    def lookups(table: ModelTable, samples: int) -> Lookups:
        return meta_lookups(name, int(table.name[1:]), samples, seed)

    return listed_workload(config, listed, lookups, {table.name: [name, seed] for table in listed}, batch_size)


def meta_lookups(name: str, t: int, batch_size: int, seed: int) -> Lookups:
    """The first `batch_size` samples of table `t` of dataset `name`, a draw without replacement from the full batch."""
    tables = population(name)
    rows = int(tables.rows[t])
    generator = np.random.default_rng([seed, 4, t])
    drawn_of = zip(tables.laws, tables.rows_by_bin[t].tolist(), strict=True)
    counts = np.concatenate([draw_counts(j, law, count, generator) for j, (law, count) in enumerate(drawn_of)])
    row_of = scatter(np.arange(len(counts)), rows, generator).astype(np.int32)  # [U] distinct
    total = int(counts.sum())
    weights = generator.standard_gamma(generator.uniform(0.5, 4.0), tables.batch_size)  # lengths; many are 0
    ends = np.rint(weights.cumsum() * (total / weights.sum())).astype(np.int64)
    ends[-1] = total
    offsets = np.concatenate(([0], ends))[: batch_size + 1]
    num_lookups = int(offsets[-1])
    if num_lookups == total:
        indices = np.repeat(row_of, counts)
        generator.shuffle(indices)
    else:
        drawn = generator.choice(total, num_lookups, replace=False)
        indices = row_of[np.searchsorted(counts.cumsum(), drawn, side="right")]
    return Lookups(torch.from_numpy(indices), torch.from_numpy(offsets))
