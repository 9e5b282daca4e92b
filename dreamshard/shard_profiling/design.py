"""The design of a collection: which shards to measure, and in what order, so that a cost model can be learnt from them.

Pure. Shards follow a low-discrepancy sequence over what a shard's cost depends on (number of tables, dims and their
spread, pooling, reuse), so any prefix covers the space evenly and a collection can stop at any time.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from dreamshard.files.digests import digest
from dreamshard.formatting import gib
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, Optimizer, Precision
from dreamshard.workloads import read_tables
from dreamshard.workloads.config import META_WORKLOADS, bundled_lists, bundled_workloads
from dreamshard.workloads.meta_population import population
from dreamshard.workloads.meta_statistics import count_laws

Vector = npt.NDArray[np.float64]

ALONE_DIMS = (4, 8, 16, 32, 64, 128, 256)
"""Widths at which a collection may measure every table alone."""
DIMS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NVIDIA = ("tiny", "small", "medium", "large", "jumbo", "colossal", "criteo")
SOURCES = ("meta-dlrm-2021", *(f"nvidia-synthetic-{size}" for size in _NVIDIA))
AXES = 6  # number of tables, dim, spread of dims, pooling, reuse, spread of pooling and reuse
ALONE_EVERY = 10
ALONE_AT_MOST = 8
"""To see what fusion saves, the tables of every tenth shard of 2 to 8 tables are also measured alone."""


@dataclass(frozen=True, kw_only=True)
class CollectionConfig:
    """What to collect.

    Attributes:
        accelerator: preset that the costs are meant for; its links complete a model learnt from them.
        sources: bundled workloads whose tables are used.
        copies: most tables with equal rows and pooling taken from one list; further ones add no information.
        max_tables: most tables in one shard.
        num_shards: size of the complete collection.
        batch_size: training samples per pass.
        memory_bytes: memory limit of one shard; the largest tables are dropped to meet it.
        warmups: passes before the timed ones.
        repeats: timed passes per shard.
        alone_dims: widths at which every table is measured alone, before the shards of the design.
        seed: of the design and of the lookups.

    Raises:
        ValueError: a count is below 1.
    """

    accelerator: str = "h200"
    sources: tuple[str, ...] = SOURCES
    copies: int = 3
    max_tables: int = 60
    num_shards: int = 4000
    batch_size: int = 65_536
    precision: Precision = "fp16"
    optimizer: Optimizer = "rowwise_adagrad"
    memory_bytes: int = 100 * 2**30
    warmups: int = 2
    repeats: int = 9
    alone_dims: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("copies", "max_tables", "num_shards", "batch_size", "memory_bytes", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, so there is nothing to collect; give at least 1")

    @property
    def design(self) -> str:
        """Twelve hexadecimal digits, equal for collections that measure the same shards in the same order."""
        left_out = ("num_shards", "warmups", "repeats", *(() if self.alone_dims else ("alone_dims",)))
        return digest(repr(sorted(item for item in asdict(self).items() if item[0] not in left_out)), 12)


@dataclass(frozen=True)
class PoolTable:
    """A table that shards are made of, at a position of a workload; the design chooses its dim.

    Attributes:
        rows: hash size.
        pooling_factor: mean lookups per sample.
        reuse: expected lookups per distinct row.
    """

    source: str
    position: int
    rows: int
    pooling_factor: float
    reuse: float

    @property
    def name(self) -> str:
        """Unique among all sources."""
        return f"{self.source}/t{self.position:04}"


@dataclass(frozen=True)
class PlannedShard:
    """One shard to measure.

    Attributes:
        index: position in the order of measuring.
        tables: positions in the pool.
        alone_of: index of the shard that this single table is part of, if it is measured for that comparison.
    """

    index: int
    tables: tuple[int, ...]
    dims: tuple[int, ...]
    alone_of: int | None = None


def collection_pool(config: CollectionConfig) -> list[PoolTable]:
    """The tables of all sources that fit into memory at the smallest dim.

    Raises:
        ValueError: no table fits, or there is no such source.
    """
    missing = [source for source in config.sources if source not in bundled_workloads()]
    if missing:
        raise ValueError(
            f"no bundled workload is called {', '.join(missing)}, so there are no tables to measure; choose from "
            f"{bundled_workloads()}"
        )
    pool: list[PoolTable] = []
    for source in config.sources:
        pool += _meta(source) if source in META_WORKLOADS else _listed(source, config.copies)
    fitting = [table for table in pool if _bytes(table, DIMS[0], config) <= config.memory_bytes]
    if not fitting:
        raise ValueError(
            f"none of the {len(pool)} tables fits into {gib(config.memory_bytes)} with a batch of "
            f"{config.batch_size}, so nothing can be measured; allow more memory or a smaller batch"
        )
    return fitting


def planned_shards(pool: list[PoolTable], config: CollectionConfig) -> Iterator[PlannedShard]:
    """The shards in the order of measuring; an infinite sequence that pool and config determine."""
    alone = _every_table_alone(pool, config)
    yield from alone
    pooling = _ranks(np.asarray([table.pooling_factor for table in pool]))  # [P] in 0..1
    reuse = _ranks(np.asarray([table.reuse for table in pool]))
    used = np.zeros(len(pool))
    index, eligible = len(alone), 0
    for point in _points():
        generator = np.random.default_rng([config.seed, 5, index])
        count = min(int((config.max_tables + 1) ** point[0]), len(pool))
        spread = 0.12 + 0.5 * point[5]  # from tables of one kind to tables of any kind
        distance = ((pooling - point[3]) ** 2 + (reuse - point[4]) ** 2) / (2 * spread**2)
        keys = -distance - 0.7 * np.log1p(used) + generator.gumbel(size=len(pool))
        chosen = np.argsort(-keys)[:count]
        shard = _fitting(pool, chosen, _dims(point, count, generator), config, index)
        used[list(shard.tables)] += 1
        yield shard
        index += 1
        if 2 <= len(shard.tables) <= ALONE_AT_MOST:
            eligible += 1
            if eligible % ALONE_EVERY == 1:
                for t, dim in zip(shard.tables, shard.dims, strict=True):
                    yield PlannedShard(index, (t,), (dim,), shard.index)
                    index += 1


def _every_table_alone(pool: list[PoolTable], config: CollectionConfig) -> list[PlannedShard]:
    """Each table in each of the asked widths that fits, in random order, so that any prefix is spread evenly."""
    pairs = [
        (t, dim)
        for t, dim in product(range(len(pool)), config.alone_dims)
        if _bytes(pool[t], dim, config) <= config.memory_bytes
    ]
    order = np.random.default_rng([config.seed, 7]).permutation(len(pairs)).tolist()
    return [PlannedShard(index, (pairs[i][0],), (pairs[i][1],)) for index, i in enumerate(order)]


def _points() -> Iterator[Vector]:
    """The R sequence in six dimensions (Roberts, 2018); every prefix is spread evenly."""
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (AXES + 1))
    step = root ** -np.arange(1.0, AXES + 1)
    position = np.full(AXES, 0.5)
    while True:
        position = (position + step) % 1
        yield position


def _dims(point: Vector, count: int, generator: np.random.Generator) -> tuple[int, ...]:
    """A dim per table: equal within a quarter of the shards, else spread around a middle."""
    middle, width = point[1] * len(DIMS) - 0.5, 4 * max(0.0, point[2] - 0.25)
    places = np.clip(np.rint(middle + width * generator.standard_normal(count)), 0, len(DIMS) - 1).astype(int)
    return tuple(DIMS[place] for place in places)


def _fitting(
    pool: list[PoolTable], chosen: npt.NDArray[np.int64], dims: tuple[int, ...], config: CollectionConfig, index: int
) -> PlannedShard:
    """The shard without the largest tables that exceed memory; a table that is too large alone gets a smaller dim."""
    size = partial(_bytes, config=config)
    by_size = sorted(zip(chosen.tolist(), dims, strict=True), key=lambda pair: size(pool[pair[0]], pair[1]))
    kept: list[tuple[int, int]] = []
    room = config.memory_bytes
    for t, dim in by_size:
        if size(pool[t], dim) <= room:
            kept.append((t, dim))
            room -= size(pool[t], dim)
    if not kept:
        t, dim = by_size[0]
        kept = [(t, max(narrower for narrower in DIMS if size(pool[t], narrower) <= room))]
    order = np.random.default_rng([config.seed, 6, index]).permutation(len(kept))
    tables, kept_dims = zip(*(kept[i] for i in order), strict=True)
    return PlannedShard(index, tables, kept_dims)


def _bytes(table: PoolTable, dim: int, config: CollectionConfig) -> int:
    """Memory of a table in a shard: weights, optimizer state, lookups, pooled vectors and gradients."""
    stored = table.rows * (dim * BYTES_PER_WEIGHT[config.precision] + BYTES_PER_ROW_STATE[config.optimizer])
    return stored + round(config.batch_size * (8 * dim + 4 * table.pooling_factor + 4))


def _ranks(values: Vector) -> Vector:
    """Ranks scaled to 0..1, ties in the order they come."""
    ranks = values.argsort(kind="stable").argsort(kind="stable")
    return np.asarray((ranks + 0.5) / len(values))


def _meta(source: str) -> list[PoolTable]:
    """Every table of one of Meta's data sets; no two are equal."""
    tables = population(source)
    lookups = tables.rows_by_bin @ np.asarray([law.mean for law in count_laws(source)])  # [T]
    unique = tables.rows_by_bin.sum(axis=1)
    return [
        PoolTable(source, t, int(rows), float(total) / tables.batch_size, float(total + 1) / float(distinct + 1))
        for t, (rows, total, distinct) in enumerate(zip(tables.rows, lookups, unique, strict=True))
    ]


def _listed(source: str, copies: int) -> list[PoolTable]:
    """Tables of a list, at most `copies` with equal rows and pooling."""
    tables = read_tables(bundled_lists()[source]).tables
    copies_of: Counter[tuple[int, float]] = Counter()
    pool = []
    columns = (tables.rows, tables.pooling_factor, tables.lookups, tables.unique_rows)
    for t, (rows, pooling, lookups, unique) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        copies_of[rows, pooling] += 1
        if copies_of[rows, pooling] <= copies:
            pool.append(PoolTable(source, t, rows, pooling, (lookups + 1) / (unique + 1)))
    return pool


def small_collection(config: CollectionConfig) -> CollectionConfig:
    """The collection for a machine without a GPU: fewer and smaller tables per shard, a small batch, fewer repeats."""
    return replace(config, max_tables=12, batch_size=min(config.batch_size, 512), memory_bytes=256 * 2**20, repeats=5)
