"""Which tables to ingest, as a recipe names them, and the `Workload` that every reader of a source returns."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dreamshard.files.digests import json_digest
from dreamshard.tables import DIM_MULTIPLE
from dreamshard.workloads.lookups import WorkloadTable

DATA = Path(__file__).parent / "data"
META_WORKLOADS = ("meta-dlrm-2021", "meta-dlrm-2022")

MIXED_DIMS = (4, 8, 16, 32, 64, 128)
MIXED_WEIGHTS = (0.15, 0.20, 0.25, 0.20, 0.12, 0.08)
"""Narrow dims are common, wide ones rare, as in NVIDIA's and MLPerf's lists."""

_SWAPS = 400  # of tables, to make a draw more like the pool


@cache
def bundled_lists() -> Mapping[str, Path]:
    """The bundled lists of tables by name; `data/SOURCES.md` gives their sources."""
    return MappingProxyType({file.stem: file for file in sorted(DATA.glob("*.csv"))})


def bundled_workloads() -> list[str]:
    """Names of all bundled workloads: the lists, and Meta's two data sets, which are generated."""
    return sorted([*META_WORKLOADS, *bundled_lists()])


def list_file(source: str) -> Path | None:
    """The local file of a list of tables, bundled or the user's own; None for other sources."""
    path = bundled_lists().get(source, Path(source))
    return path if path.suffix in (".csv", ".parquet", ".json") and path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Which tables to ingest.

    Attributes:
        source: a bundled workload's name; a path or URI (`s3://bucket/tables/`) of a file or folder, as `opening.py` reads
            them; or a function that returns a TorchRec model: `model.py:make_model`.
        batches: function that returns sample batches of the model's features, `data.py:make_batches`; None for Zipf lookups.
        num_batches: of these to read, all of whose samples count; None for as many as `batch_size` takes.
        num_tables: number of tables to take, or None for all.
        max_table_bytes: size limit of a table as fp32 weights, or None.
        batch_size: training samples per batch of lookups: the source's first ones, fewer if a file has fewer.
        dim: one dimension for every table; `mixed` to draw dims from 4 to 128 per table; None for the source's own.
        unknown_dim: used if `dim` is None and the source knows no dims: a dimension, or `mixed`.
        seed: of the draws of tables, dims and lookups.

    Raises:
        ValueError: a count is not positive, or a dimension is neither a multiple of 4, `mixed` nor None.
    """

    source: str = "meta-dlrm-2021"
    batches: str | None = None
    num_batches: int | None = None
    num_tables: int | None = None
    max_table_bytes: int | None = None
    batch_size: int = 65_536
    dim: int | str | None = "mixed"
    unknown_dim: int | str = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_tables", "max_table_bytes", "batch_size", "num_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, so no table or no sample would be left; give at least 1")
        for dim in (self.dim, self.unknown_dim):
            is_wrong = dim != "mixed" if isinstance(dim, str) else dim is not None and (dim < 4 or dim % DIM_MULTIPLE)
            if is_wrong:
                raise ValueError(f"dim is {dim!r}; give a multiple of {DIM_MULTIPLE}, or 'mixed'")


@dataclass(frozen=True)
class Workload:
    """Tables of one source; nothing large is in memory until a table is read.

    Attributes:
        description: one line for people: the tables and their number.
        names: the tables' names, in order.
        table: reads the table at a position with its lookups; may be called in any order and from threads.
        fingerprint: 16 hexadecimal digits for the table at a position, which change with everything that `table`
            depends on except code. Generated lookups are not drawn for it, and files are not decoded.
        notes: what of a model was not used, and what was assumed.
    """

    description: str
    names: tuple[str, ...]
    table: Callable[[int], WorkloadTable]
    fingerprint: Callable[[int], str]
    notes: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """Identity of all tables and their lookups."""
        return json_digest([self.fingerprint(t) for t in range(self.num_tables)])

    @property
    def num_tables(self) -> int:
        """Number of tables that `tables()` yields."""
        return len(self.names)

    def tables(self) -> Iterator[WorkloadTable]:
        """The tables in order, one in memory at a time."""
        return map(self.table, range(self.num_tables))


def name_seed(name: str) -> int:
    """A seed from a table's name, so that its draws are the same in every list."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def table_dims(
    config: WorkloadConfig, num_tables: int, own: Sequence[int] | None = None, names: Sequence[str] | None = None
) -> npt.NDArray[np.int64]:
    """`[T]` dimension of each table: one for all, drawn, or the source's own. No table's depends on another table.

    Args:
        own: the source's dims, or None if it knows none.
        names: to draw dims by name, for sources whose order may change; None to draw by position.
    """
    if config.dim is None and own is not None:
        return np.asarray(own, dtype=np.int64)
    wanted = config.unknown_dim if config.dim is None else config.dim
    if isinstance(wanted, int):
        return np.full(num_tables, wanted, dtype=np.int64)
    draws = _draws(config, 1, num_tables, names)
    return np.asarray(MIXED_DIMS, dtype=np.int64)[np.searchsorted(np.cumsum(MIXED_WEIGHTS)[:-1], draws, side="right")]


def choose_tables(
    config: WorkloadConfig,
    rows: npt.NDArray[np.int64],
    dims: npt.NDArray[np.int64],
    shares: npt.NDArray[np.float64] | None = None,
    names: Sequence[str] | None = None,
) -> npt.NDArray[np.int64]:
    """Positions of the tables that the config asks for, in the source's order.

    Args:
        rows: `[T]` hash sizes.
        dims: `[T]` dimensions.
        shares: `[T, K]` quantities whose means the subset should preserve, or None for a plain draw.
        names: as for `table_dims`; whether a table is drawn then depends little on the other tables.

    Raises:
        ValueError: the source has fewer tables of that size.
    """
    limit = config.max_table_bytes
    eligible = np.arange(len(rows)) if limit is None else np.flatnonzero(rows * dims * 4 <= limit)
    wanted = len(eligible) if config.num_tables is None else config.num_tables
    if wanted > len(eligible) or not len(eligible):
        size = "" if limit is None else f" of at most {limit / 2**20:.4g} MiB as fp32"
        raise ValueError(
            f"{config.source} has {len(eligible)} tables{size}, fewer than the {max(1, wanted)} asked for; "
            "ask for fewer tables, or allow larger ones"
        )
    if wanted == len(eligible):
        return eligible
    if names is not None:
        return np.sort(eligible[_draws(config, 2, len(names), names)[eligible].argsort()[:wanted]])
    generator = np.random.default_rng([config.seed, 2])
    if shares is None:
        return np.sort(eligible[generator.permutation(len(eligible))[:wanted]])
    return np.sort(eligible[_balanced(shares[eligible], wanted, generator)])


def _draws(
    config: WorkloadConfig, purpose: int, num_tables: int, names: Sequence[str] | None
) -> npt.NDArray[np.float64]:
    """`[T]` uniform numbers, by name if there are names, else by position."""
    if names is None:
        return np.random.default_rng([config.seed, purpose]).random(num_tables)
    return np.asarray([np.random.default_rng([config.seed, purpose, name_seed(name)]).random() for name in names])


def _balanced(shares: npt.NDArray[np.float64], wanted: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw positions, then swap tables while that moves the means of `shares` closer to the population's."""
    centred = shares - shares.mean(axis=0)  # [T, K]
    order = generator.permutation(len(shares))
    inside, outside = order[:wanted], order[wanted:]
    excess = centred[inside].sum(axis=0)  # [K]
    for _ in range(_SWAPS):
        leaves = int(generator.integers(len(inside)))
        after = excess - centred[inside[leaves]] + centred[outside]  # [O, K]
        enters = int((after**2).sum(axis=1).argmin())
        if (after[enters] ** 2).sum() < (excess**2).sum():
            excess = after[enters]
            inside[leaves], outside[enters] = outside[enters], inside[leaves]
    return inside
