"""Which tables to ingest, and the `Workload` that every source gives: tables, and their lookups on demand."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from pydantic import Field

from dreamshard.files import json_digest
from dreamshard.model_table import ModelTable
from dreamshard.tables import DIM_MULTIPLE, padded_dim
from dreamshard.workloads.lookups import Lookups, WorkloadTable, check_indices, index_dtype
from dreamshard.workloads.zipf import draw_ranks, scatter

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
    """Names of all bundled workloads: the lists, and Meta's two data sets, which are generated."""
    return sorted([*META_WORKLOADS, *bundled_lists()])


def list_file(source: str) -> Path | None:
    """The local file of a list of tables, bundled or the user's own; None for other sources."""
    path = bundled_lists().get(source, Path(source))
    return path if path.suffix in (".csv", ".parquet", ".json") and path.is_file() else None


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
        dim: one dimension for every table; `mixed` to draw dims from 4 to 128 per table; None for the source's own.
        seed: of the draws of tables, dims and lookups.

    Raises:
        ValueError: a count is not positive, or a dimension is neither a multiple of 4, `mixed` nor None.
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
        config: that asked for these tables.
        listed: the tables, in order.
        batch_size: samples of each table.
        recorded: lookups of a table's first samples; may be called in any order and from threads.
        tokens: a JSON value for each table with recorded lookups, by name, that changes with all that these are made from,
            except code. The others get Zipf lookups.
        notes: unused parts of a model, and assumptions.
    """

    config: WorkloadConfig
    listed: tuple[ModelTable, ...]
    batch_size: int
    recorded: Callable[[ModelTable, int], Lookups]
    tokens: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The tables' names, in order."""
        return tuple(table.name for table in self.listed)

    @property
    def token(self) -> str:
        """Identity of all tables and their lookups."""
        return json_digest([self.fingerprint(t) for t in range(len(self.listed))])

    def fingerprint(self, position: int) -> str:
        """16 hexadecimal digits for a table and its lookups; nothing is drawn or decoded for it."""
        table = self.listed[position]
        origin = self.tokens.get(table.name) or ["zipf", table.pooling_factor, self.config.seed]
        several = [] if table.poolings == 1 else [table.poolings]
        return json_digest([table.name, table.rows, table.dim, self.batch_size, origin, *several])

    def table(self, position: int) -> WorkloadTable:
        """A table with its lookups.

        Raises:
            ValueError: the lookups cannot be read, or one is outside the table.
        """
        table = self.listed[position]
        if table.name in self.tokens:
            lookups = self.recorded(table, self.batch_size)
            check_indices(lookups.indices, table.rows, f"table {table.name!r} of {Path(self.config.source).name}")
        else:
            lookups = zipf_lookups(table, self.batch_size, self.config.seed)
        indices = lookups.indices.to(index_dtype(table.rows))
        return WorkloadTable(table.name, table.rows, table.dim, Lookups(indices, lookups.offsets), table.poolings)

    def tables(self) -> Iterator[WorkloadTable]:
        """The tables in order, one in memory at a time."""
        return map(self.table, range(len(self.listed)))


def listed_workload(
    config: WorkloadConfig,
    listed: Sequence[ModelTable],
    recorded: Callable[[ModelTable, int], Lookups],
    tokens: Mapping[str, Any],
    num_samples: int,
    notes: tuple[str, ...] = (),
) -> Workload:
    """The tables of a list that the config asks for, with the dims it asks for, or their own as multiples of 4.

    A table's dim and lookups depend on its line alone, not on its place in the list, and whether it is drawn depends little
    on the other tables.

    Args:
        listed: this and the other arguments are as the fields of `Workload`.
        num_samples: that were recorded, and the most that every table has if any of them was recorded.

    Raises:
        ValueError: the list has too few tables.
    """

    def draw(purpose: int, table: ModelTable) -> float:
        return float(np.random.default_rng([config.seed, purpose, name_seed(table.name)]).random())

    def dim(table: ModelTable) -> int:
        return int(mixed_dims(draw(1, table))) if config.dim == "mixed" else config.dim or padded_dim(table.dim)

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
    drawn = set(sorted(eligible, key=lambda table: draw(2, table))[:wanted])
    chosen = tuple(table for table in eligible if table in drawn)
    is_recorded = any(table.name in tokens for table in chosen)
    batch_size = min(config.batch_size, num_samples) if is_recorded else config.batch_size
    return Workload(config, chosen, batch_size, recorded, tokens, notes)


def zipf_lookups(table: ModelTable, batch_size: int, seed: int) -> Lookups:
    """Lookups of a table: `pooling_factor` per sample, rounded so that the mean holds; one if it is not given.

    Raises:
        ValueError: these are more lookups than are drawn.
    """
    pooling, rows = 1.0 if table.pooling_factor is None else table.pooling_factor, table.rows
    if pooling * batch_size > _MOST_DRAWN:
        raise ValueError(
            f"table {table.name!r} has {pooling * batch_size:.3g} lookups in a batch of {batch_size:,}, more than "
            f"{_MOST_DRAWN:,}; correct pooling_factor {pooling:.4g}, or use a smaller batch"
        )
    generator = np.random.default_rng([seed, 3, name_seed(table.name)])
    offsets = np.floor(np.arange(batch_size + 1) * pooling + 1e-9).astype(np.int64)
    indices = scatter(draw_ranks(rows, int(offsets[-1]), generator), rows, generator)
    return Lookups(torch.from_numpy(indices).to(index_dtype(rows)), torch.from_numpy(offsets))


def name_seed(name: str) -> int:
    """A seed from a table's name, so that its draws are the same in every list."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def mixed_dims(draws: Any) -> Any:
    """Dims by uniform draws, one or an array."""
    return np.array(MIXED_DIMS)[np.searchsorted(np.cumsum(MIXED_WEIGHTS)[:-1], draws, side="right")]
