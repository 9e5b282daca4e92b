"""Costs of shards as a data set: Parquet parts in one folder, or one file.

A row is a shard: its tables with all their statistics, and its cost on the device. Each added shard replaces the current
part atomically until the part is full, so a collection that is cut off loses at most the shard being measured.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.files import atomic
from dreamshard.files.bounds import MOST_COLUMNS, MOST_COUNT, MOST_ROWS
from dreamshard.files.foreign import brief
from dreamshard.files.parquet import parquet_errors, read_columns
from dreamshard.placement import Placement
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, NUM_BINS, Optimizer, Precision, Tables, concatenate
from dreamshard.tasks import PlacementTask

SHARDS_PER_PART = 32
BUNDLED = Path(__file__).parent / "measurements"
"""Measured shards that come with the package, a Parquet file each; its README.md says how they were measured."""
_MOST_SHARDS = 1_000_000  # of one file
_MAY_BE_NULL = ("alone_of", "forward_ms", "backward_ms", "asked_bytes", "free_bytes")
SCHEMA = pa.schema(
    [
        ("design", pa.string()),
        ("index", pa.int32()),  # in the design's order
        ("alone_of", pa.int32()),  # index of the shard whose table this is, alone
        ("num_tables", pa.int32()),
        ("table_names", pa.list_(pa.string())),
        ("rows", pa.list_(pa.int64())),
        ("dims", pa.list_(pa.int32())),
        ("pooling_factors", pa.list_(pa.float64())),  # mean lookups per sample
        ("lookups", pa.list_(pa.int64())),  # of the batch
        ("unique_rows", pa.list_(pa.int64())),
        ("bins", pa.list_(pa.float32())),  # 17 per table, table after table
        ("batch_size", pa.int32()),
        ("precision", pa.string()),
        ("optimizer", pa.string()),
        ("forward_ms", pa.float64()),  # null where the shard did not fit
        ("backward_ms", pa.float64()),
        ("spread_ms", pa.float64()),  # interquartile range of their sum
        ("repeats", pa.int32()),
        ("clock", pa.string()),
        ("asked_bytes", pa.int64()),  # null where the shard did fit
        ("free_bytes", pa.int64()),
        ("hardware", pa.string()),
        ("versions", pa.string()),  # JSON
        ("measured_at", pa.timestamp("us")),  # UTC
    ]
)


@dataclass(frozen=True, kw_only=True)
class MeasuredShard:
    """One row of the data set.

    Attributes:
        design: of the collection.
        index: position in the design.
        alone_of: index of the shard that this single table is part of, if it is measured for that comparison.
        batch_size: training samples per pass.
        forward_ms: None, like `backward_ms`, if the shard did not fit.
        spread_ms: interquartile range of their sum over the repeats.
        repeats: timed passes.
        clock: as in `CostSample`.
        asked_bytes: None, like `free_bytes`, if the shard did fit.
        hardware: model of the device.
        versions: library name to version.
        measured_at: UTC, without a zone.
    """

    design: str
    index: int
    alone_of: int | None
    tables: Tables
    batch_size: int
    precision: Precision
    optimizer: Optimizer
    forward_ms: float | None = None
    backward_ms: float | None = None
    spread_ms: float = 0.0
    repeats: int = 0
    clock: str
    asked_bytes: int | None = None
    free_bytes: int | None = None
    hardware: str
    versions: dict[str, str]
    measured_at: datetime

    def to_sample(self) -> CostSample:
        """The cost of a placement on one device. Tables are named NAME@DIM, since dims differ by shard.

        Raises:
            ValueError: the shard did not fit.
        """
        if self.forward_ms is None or self.backward_ms is None:
            raise ValueError(f"shard {self.index} did not fit its device, so it has no cost; exclude it")
        dims = self.tables.dim.tolist()
        named = tuple(f"{name}@{dim}" for name, dim in zip(self.tables.names, dims, strict=True))
        tables = replace(self.tables, names=named)
        costs = DeviceCosts.from_phases(torch.tensor([[self.forward_ms, 0.0, 0.0, self.backward_ms]]))
        table_bytes = int(tables.memory_bytes(self.precision, self.optimizer).sum())
        return CostSample(
            task=PlacementTask(tables, 1, table_bytes, self.precision, self.optimizer, f"shard-{self.index:05}"),
            placement=Placement(torch.zeros(len(tables), dtype=torch.int64), 1),
            costs=costs,
            overall_ms=float(costs.overall_ms()),
            spread_ms=self.spread_ms,
            repeats=self.repeats,
            clock=self.clock,
            testbed="shards",
            hardware=self.hardware,
            batch_size=self.batch_size,
            versions=self.versions,
        )


class ShardWriter:
    """Adds shards to a folder of parts, which is created if missing."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._shards: list[MeasuredShard] = []
        self._part = 1 + max((int(path.stem.partition("-")[2]) for path in _parts(folder)), default=-1)

    def add(self, shard: MeasuredShard) -> None:
        """Add one shard; it is on disk when this returns."""
        self._shards.append(shard)
        atomic.write(self.folder / f"part-{self._part:05}.parquet", parquet_bytes(self._shards))
        if len(self._shards) == SHARDS_PER_PART:
            self._shards, self._part = [], self._part + 1


def read_shards(source: Path) -> list[MeasuredShard]:
    """Read a folder of parts or one file; each shard once, in the design's order.

    Raises:
        ValueError: there are no shards, or a file is not in this format.
    """
    files = _parts(source) if source.is_dir() else [source]
    rows: dict[tuple[str, int], tuple[Path, dict[str, Any]]] = {}
    advice = "so it is not part of a collection; name the output of `python -m dreamshard.shard_profiling.collect`"
    for file in files:
        found = read_columns(file, SCHEMA.names, advice, most_rows=_MOST_SHARDS, lists=True)
        with parquet_errors(file, advice):
            rows |= {(row["design"], row["index"]): (file, row) for row in _whole(found.cast(SCHEMA)).to_pylist()}
    if not rows:
        raise ValueError(
            f"there are no measured shards in {source}; run `python -m dreamshard.shard_profiling.collect --out {source}`"
        )
    shards = []
    for key in sorted(rows):
        file, row = rows[key]
        with parquet_errors(file, advice):
            shards.append(_from_row(row))
    return shards


def known_indices(folder: Path, design: str) -> set[int]:
    """Indices of a design's shards that the folder holds.

    Raises:
        ValueError: it holds shards of another design, which would be mixed with this one's.
    """
    indices: set[int] = set()
    for file in _parts(folder):
        advice = "so it is not known which shards it has; remove it to measure its shards again"
        part = read_columns(file, ["design", "index"], advice, most_rows=_MOST_SHARDS)
        others = set(part["design"].to_pylist()) - {design}
        if others:
            raise ValueError(
                f"{folder} holds shards of another collection ({sorted(others)[0]}, not {design}): other tables, "
                "batch, precision or seed; resume with the same options, or name another folder"
            )
        indices.update(part["index"].to_pylist())
    return indices


def measurement_conditions(shards: Sequence[MeasuredShard]) -> dict[str, object]:
    """Hardware, versions, dates, batch, precision, optimizer and number of shards, for people and for JSON.

    Raises:
        ValueError: the shards were not all measured under the same conditions.
    """
    conditions = {(shard.hardware, shard.batch_size, shard.precision, shard.optimizer) for shard in shards}
    if len(conditions) != 1:
        raise ValueError(
            f"shards measured under {len(conditions)} conditions ({sorted(map(str, conditions))[:3]}) cannot be learnt from "
            "together; give those of one device, batch size, precision and optimizer"
        )
    dates = sorted(shard.measured_at.date().isoformat() for shard in shards)
    return {
        "hardware": shards[0].hardware,
        "versions": shards[0].versions,
        "measured": [dates[0], dates[-1]],
        "batch_size": shards[0].batch_size,
        "precision": shards[0].precision,
        "optimizer": shards[0].optimizer,
        "shards": len(shards),
        "infeasible": sum(shard.forward_ms is None for shard in shards),
    }


def samples_of(shards: Iterable[MeasuredShard]) -> list[CostSample]:
    """The shards that fit, as placements on one device."""
    return [shard.to_sample() for shard in shards if shard.forward_ms is not None]


def distinct_tables(samples: Sequence[CostSample], *, one_dim_each: bool = False) -> Tables:
    """Every table of the samples once; with `one_dim_each`, in one dim only."""
    seen: set[str] = set()
    parts = []
    for sample in samples:
        keys = [name.partition("@")[0] if one_dim_each else name for name in sample.task.tables.names]
        fresh = [t for t, key in enumerate(keys) if key not in seen]
        seen.update(keys)
        if fresh:
            parts.append(sample.task.tables.select(fresh))
    return concatenate(parts)


def parquet_bytes(shards: Iterable[MeasuredShard]) -> bytes:
    """One Parquet file that `read_shards` reads."""
    sink = pa.BufferOutputStream()
    rows = pa.Table.from_pylist([_to_row(shard) for shard in shards], schema=SCHEMA)
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _to_row(shard: MeasuredShard) -> dict[str, Any]:
    tables = shard.tables
    plain = {name: getattr(shard, name) for name in SCHEMA.names if hasattr(shard, name)}
    return plain | {
        "num_tables": len(tables),
        "table_names": list(tables.names),
        "rows": tables.rows.tolist(),
        "dims": tables.dim.tolist(),
        "pooling_factors": tables.pooling_factor.tolist(),
        "lookups": tables.lookups.tolist(),
        "unique_rows": tables.unique_rows.tolist(),
        "bins": tables.bins.flatten().tolist(),
        "versions": json.dumps(shard.versions, sort_keys=True),
    }


def _whole(found: pa.Table) -> pa.Table:
    """The rows, none of which lacks what every shard has."""
    lacking = [name for name in found.column_names if name not in _MAY_BE_NULL and found[name].null_count]
    if lacking:
        raise TypeError(f"a shard lacks its {', '.join(lacking)}")
    return found


def _from_row(row: dict[str, Any]) -> MeasuredShard:
    if row["precision"] not in BYTES_PER_WEIGHT or row["optimizer"] not in BYTES_PER_ROW_STATE:
        raise TypeError(f"a shard is in {brief(row['precision'])} with {brief(row['optimizer'])}, which are unknown")
    for name, most in (("rows", MOST_ROWS), ("dims", MOST_COLUMNS), ("lookups", MOST_COUNT)):
        if not all(isinstance(each, int) and 0 <= each <= most for each in row[name]):
            raise TypeError(f"{name} of a shard are {brief(row[name])}, not all from 0 to {most}")
    per_table = ("table_names", "rows", "dims", "pooling_factors", "lookups", "unique_rows")
    if len({len(row[name]) for name in per_table}) != 1:
        raise TypeError(f"a shard has different numbers of {', '.join(per_table)}")
    tables = Tables(
        tuple(row["table_names"]),
        rows=torch.tensor(row["rows"]),
        dim=torch.tensor(row["dims"]),
        pooling_factor=torch.tensor(row["pooling_factors"], dtype=torch.float64),
        bins=torch.tensor(row["bins"], dtype=torch.float64).reshape(-1, NUM_BINS),
        lookups=torch.tensor(row["lookups"]),
        unique_rows=torch.tensor(row["unique_rows"]),
    )
    plain = {name: value for name, value in row.items() if name in MeasuredShard.__dataclass_fields__}
    return MeasuredShard(tables=tables, **plain | {"versions": json.loads(row["versions"])})
