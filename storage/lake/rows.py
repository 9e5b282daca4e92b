"""Converts tables, tasks, samples and evaluations to rows of the lake and back; no file access."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import torch

from dreamshard.costs import CostSample, DeviceCosts, Infeasible
from dreamshard.evaluation import EvaluationRow
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from storage.lake import schemas
from storage.lake.parquet_files import content_id

Row = dict[str, Any]

_OF_TABLES = ("rows", "dim", "pooling_factor", "lookups", "unique_rows")
_OF_TASK = ("num_devices", "devices_per_host", "precision", "optimizer")
_OF_SAMPLE = ("testbed", "hardware", "clock", "batch_size", "repeats")


def now() -> datetime:
    """The current time, UTC, without a time zone as in the schemas."""
    return datetime.now(UTC).replace(tzinfo=None)


def tables_to_rows(tables: Tables, version: str, source: str, created_at: datetime | None = None) -> pa.Table:
    """One row per table, written at `created_at`, by default now."""
    columns: Row = {
        "dataset_version": [version] * len(tables),
        "position": range(len(tables)),
        **description_columns(tables),
        "source": [source] * len(tables),
        "lookups_file": [lookups_file(tables.select([t])) for t in range(len(tables))],
        "created_at": [created_at or now()] * len(tables),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schemas.TABLES]
    return pa.Table.from_arrays(arrays, schema=schemas.TABLES)


def description_columns(tables: Tables) -> Row:
    """The columns that describe the tables themselves."""
    return {
        "name": list(tables.names),
        "rows": tables.rows.numpy(),
        "dim": tables.dim.numpy(),
        "pooling_factor": tables.pooling_factor.double().numpy(),
        **{name: tables.bins[:, j].double().numpy() for j, name in enumerate(schemas.BINS)},
        "lookups": tables.lookups.numpy(),
        "unique_rows": tables.unique_rows.numpy(),
    }


def tables_from_rows(rows: pa.Table) -> Tables:
    """The tables in the order of `position`; counts are int64, pooling factor and bins float64."""
    ordered = rows.sort_by("position")
    names = (*_OF_TABLES, *schemas.BINS)
    columns = {name: torch.from_numpy(ordered.column(name).to_numpy().copy()) for name in names}
    columns["dim"] = columns["dim"].to(torch.int64)
    bins = torch.stack([columns.pop(name) for name in schemas.BINS], dim=1)
    return Tables(tuple(ordered.column("name").to_pylist()), bins=bins, **columns)


def lookups_file(one_table: Tables) -> str:
    """Path of a table's lookups below the lake's root, made of the same content hash as a dataset's version."""
    return f"lookups/{dataset_version(one_table)}.parquet"


def task_to_row(task: PlacementTask) -> Row:
    """The columns of `TASKS` that describe the task itself."""
    return {
        "task": task.name,
        "table_names": list(task.tables.names),
        "num_tables": len(task.tables),
        "memory_bytes": task.memory_bytes,
        **{name: getattr(task, name) for name in _OF_TASK},
    }


def task_from_row(row: Row, pool: Tables) -> PlacementTask:
    """The task, with its tables from `pool`."""
    same = {name: row[name] for name in _OF_TASK}
    return PlacementTask(pool.named(row["table_names"]), memory_bytes=row["memory_bytes"], name=row["task"], **same)


def sample_to_rows(sample: CostSample, *, run_key: str, iteration: int, dataset_version: str) -> list[Row]:
    """One row per device; device 0 carries the placement. `sample_id` is the hash of everything measured."""
    sample = sample.of_whole_tables()
    task, device = sample.task, sample.placement.device
    phases = sample.costs.phases_ms().to(torch.float32).tolist()  # [D, 4]
    fits = sample.infeasible is None
    whole: Row = {
        "run_key": run_key,
        "iteration": iteration,
        "dataset_version": dataset_version,
        **{name: getattr(sample, name) for name in _OF_SAMPLE},
        "task": task.name,
        "capacity_bytes": task.memory_bytes,
        **{name: getattr(task, name) for name in _OF_TASK},
        "overall_ms": sample.overall_ms if fits else None,
        "spread_ms": sample.spread_ms if fits else None,
        "versions": json.dumps(dict(sample.versions), sort_keys=True),
    }
    placed = {"table_names": list(task.tables.names), "placement": device.tolist()}
    misfit = {} if sample.infeasible is None else asdict(sample.infeasible)
    identity = content_id([whole, placed, phases, *([misfit] if misfit else [])])
    whole |= {"sample_id": identity, "created_at": now(), "infeasible_device": misfit.get("device")}
    whole |= {name: misfit.get(name) for name in ("asked_bytes", "free_bytes")}
    held_bytes = Shards.of(task, sample.placement).memory_bytes().tolist()
    rows = []
    for d in range(task.num_devices):
        shard = (device == d).nonzero().flatten().tolist()
        names = [task.tables.names[t] for t in shard]
        rows.append(
            whole
            | (placed if d == 0 else dict.fromkeys(placed))
            | dict(zip(schemas.PHASE_COLUMNS, phases[d] if fits else [None] * 4, strict=True))
            | {
                "device": d,
                "device_ms": sum(phases[d]) if fits else None,
                "memory_bytes": held_bytes[d],
                "num_tables": len(shard),
                "sum_dim": int(task.tables.dim[shard].sum()),
                "single_table": names[0] if len(names) == 1 else None,
                "shard_tables": names,
            }
        )
    return rows


def samples_from_rows(rows: Iterable[Row], pool: Tables) -> list[CostSample]:
    """Samples of one dataset, in the order of their first rows; costs are float32, duplicate samples count once."""
    devices: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        devices[row["sample_id"]].setdefault(row["device"], row)
    return [_sample([row for _, row in sorted(by_device.items())], pool) for by_device in devices.values()]


def evaluation_to_row(row: EvaluationRow, model_version: str | None, origin: Row, candidate: Row | None = None) -> Row:
    """One placer on one task; `evaluation_id` is the hash of the content.

    Args:
        model_version: the placer's version, if it is a registered model.
        origin: columns that all rows of the evaluation share.
        candidate: training and iteration of the placer; None for placers of no training or of a registered version.
    """
    content: Row = {
        **origin,
        "placer": row.placer,
        "model_version": model_version,
        **(candidate or {}),
        "task": row.task.name,
        "num_devices": row.task.num_devices,
        "overall_ms": row.overall_ms if math.isfinite(row.overall_ms) else None,
        "predicted_ms": row.predicted_ms if math.isfinite(row.predicted_ms) else None,
        "legal": row.legal,
        "place_ms": row.place_ms,
        "table_names": list(row.task.tables.names),
        "placement": row.placement.device.tolist(),
    }
    return content | {"evaluation_id": content_id(content), "created_at": now()}


def _sample(rows: Sequence[Row], pool: Tables) -> CostSample:
    first = rows[0]
    infeasible, device = None, first["infeasible_device"]
    if device is not None:
        infeasible = Infeasible(device=device, asked_bytes=first["asked_bytes"], free_bytes=first["free_bytes"])
    phases = torch.tensor([[row[name] or 0.0 for name in schemas.PHASE_COLUMNS] for row in rows])  # [D, 4]
    task = task_from_row(first | {"memory_bytes": first["capacity_bytes"]}, pool)
    return CostSample(
        task=task,
        placement=Placement.whole(first["placement"], first["num_devices"]),
        costs=DeviceCosts.from_phases(phases),
        spread_ms=first["spread_ms"] if infeasible is None else 0.0,
        versions=json.loads(first["versions"]),
        infeasible=infeasible,
        **{name: first[name] for name in _OF_SAMPLE},
    )
