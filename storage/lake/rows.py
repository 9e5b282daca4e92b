"""Converts tables, tasks and samples to rows of the lake and back; no file access."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isnan, nan
from typing import Any

import pyarrow as pa
import torch

from dreamshard.costs import PHASES, TRACED, CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.tables import NUM_BINS, Placement, Tables, block_shares
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.workloads import dataset_version
from storage.lake.parquet_files import content_id, datasets

Row = dict[str, Any]

_BINS = [f"bin_{j}" for j in range(NUM_BINS)]
_PHASES = [f"{phase}_ms" for phase in PHASES]
_OF_TABLES = ("rows", "dim", "pooling_factor", "lookups", "unique_rows", "poolings")
_OF_TASK = ("num_devices", "devices_per_host", "precision", "optimizer")
_OF_SAMPLE = ("testbed", "hardware", "clock", "batch_size", "repeats", "repeat", "is_reference", "round")
_OF_EXCHANGE = ("testbed", "hardware", "host_devices", "clock", "repeats", "round")
_OF_DEVICES = ("forward_ms", "backward_ms")


def now() -> datetime:
    """The current time, UTC, without a time zone as in `datasets.sql`."""
    return datetime.now(UTC).replace(tzinfo=None)


def tables_to_rows(tables: Tables, **others: Any) -> pa.Table:
    """One row per table; `others` are columns of one value, and the rest are null."""
    schema, files = datasets()["tables"], [lookups_file(tables.select([t])) for t in range(len(tables))]
    columns: Row = {name: [others.get(name)] * len(tables) for name in schema.names}
    columns |= {"position": range(len(tables)), **description_columns(tables), "lookups_file": files}
    return pa.table(columns, schema=schema)


def description_columns(tables: Tables) -> Row:
    """The columns that describe the tables themselves."""
    return {
        "name": list(tables.names),
        **{name: getattr(tables, name).numpy() for name in _OF_TABLES},
        **dict(zip(_BINS, tables.bins.double().numpy().T, strict=True)),
        "block_share": [None] * len(tables) if tables.block_share is None else list(tables.block_share.numpy()),
    }


def tables_from_rows(rows: pa.Table) -> Tables:
    """The tables of rows; counts are int64, pooling factor and bins float64."""
    columns = {name: torch.from_numpy(rows.column(name).to_numpy().copy()) for name in (*_OF_TABLES, *_BINS)}
    columns["dim"] = columns["dim"].to(torch.int64)
    bins, shares = torch.stack([columns.pop(name) for name in _BINS], dim=1), rows.column("block_share").to_pylist()
    names = tuple(rows.column("name").to_pylist())
    return Tables(names, bins=bins, **columns, block_share=block_shares(shares))


def shard_columns(tables: Tables) -> Row:
    """The columns that refer to tables of a dataset, or to shards of them."""
    ranges = None if tables.first_column is None else tables.column_ranges.tolist()
    return {"table_names": list(tables.names), "table_columns": ranges}


def lookups_file(one_table: Tables) -> str:
    """Path of a table's lookups below the lake's root, made of the same content hash as a dataset's version."""
    return f"lookups/{dataset_version(one_table)}.parquet"


def task_to_row(task: PlacementTask) -> Row:
    """The columns of a task itself."""
    return {
        "task": task.name,
        **shard_columns(task.tables),
        "num_tables": len(task.tables),
        "memory_bytes": task.memory_bytes,
        **{name: getattr(task, name) for name in _OF_TASK},
    }


def task_from_row(row: Row, pool: Tables) -> PlacementTask:
    """The task, with its tables from `pool`."""
    same = {name: row[name] for name in _OF_TASK}
    tables = pool.named(row["table_names"], row["table_columns"])
    return PlacementTask(tables, memory_bytes=row["memory_bytes"], name=row["task"], **same)


def sample_to_rows(sample: CostSample, *, run_key: str, iteration: int, dataset_version: str) -> list[Row]:
    """One row per device; device 0 carries the placement. `sample_id` is the hash of everything measured.

    Rounds of one measurement of a placement share `measurement_id`.
    """
    task, shards = sample.task, Shards.of(sample.task, sample.placement)
    tables, labels, device = shards.tables, shards.tables.labels, shards.device
    phases = sample.costs.phases_ms.to(torch.float32).tolist()  # [D, 4]
    misfit = sample.infeasible
    whole: Row = {
        "run_key": run_key,
        "iteration": iteration,
        "dataset_version": dataset_version,
        **{name: getattr(sample, name) for name in _OF_SAMPLE},
        "task": task.name,
        "capacity_bytes": task.memory_bytes,
        **{name: getattr(task, name) for name in _OF_TASK},
        "overall_ms": None if misfit else sample.overall_ms,
        "versions": json.dumps(dict(sample.versions), sort_keys=True),
        "infeasible_device": misfit and misfit.device,
        "asked_bytes": misfit and misfit.asked_bytes,
        "free_bytes": misfit and misfit.free_bytes,
    }
    placed = {**shard_columns(tables), "placement": device.tolist()}
    measured = [run_key, iteration, task.name, placed, sample.repeat, sample.is_reference]
    whole |= {"measurement_id": content_id(measured), "sample_id": content_id([whole, placed, phases])}
    whole["created_at"] = now()
    held_bytes = shards.memory_bytes().tolist()
    rows = []
    for d in range(task.num_devices):
        shard = (device == d).nonzero().flatten().tolist()
        names = [labels[t] for t in shard]
        times = (
            {}
            if misfit or isnan(phases[d][0])
            else {"device_ms": sum(phases[d]), **dict(zip(_PHASES, phases[d], strict=True))}
        )
        of_device = {
            "device": d,
            "memory_bytes": held_bytes[d],
            "num_tables": len(shard),
            "sum_dim": int(tables.dim[shard].sum()),
            "single_table": names[0] if len(names) == 1 else None,
            "shard_tables": names,
        }
        rows.append(whole | of_device | times | (placed if d == 0 else {}))
    return rows


def samples_from_rows(rows: Iterable[Row], pool: Tables) -> list[CostSample]:
    """Samples of one dataset, in the order of their first rows; costs are float32, duplicate samples count once."""
    devices: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        devices[row["sample_id"]].setdefault(row["device"], row)
    return [_sample([row for _, row in sorted(by_device.items())], pool) for by_device in devices.values()]


def exchange_to_row(sample: ExchangeSample) -> Row:
    """One row per all-to-all."""
    exchange = sample.exchange
    return {
        **{name: getattr(sample, name) for name in _OF_EXCHANGE},
        **{name: getattr(sample, name).tolist() for name in _OF_DEVICES},
        **{f"slowest_{name}": float(getattr(sample, name).max()) for name in _OF_DEVICES},
        "versions": json.dumps(dict(sample.versions), sort_keys=True),
        "num_devices": exchange.num_devices,
        "devices_per_host": exchange.devices_per_host,
        "largest_bytes": int(exchange.sent_bytes.max()),
        "sent_bytes": exchange.sent_bytes.tolist(),
    }


def exchange_from_row(row: Row) -> ExchangeSample:
    """The sample of a row."""
    return ExchangeSample(
        exchange=Exchange(sent_bytes=torch.tensor(row["sent_bytes"]), devices_per_host=row["devices_per_host"]),
        forward_ms=torch.tensor(row["forward_ms"]),
        backward_ms=torch.tensor(row["backward_ms"]),
        versions=json.loads(row["versions"]),
        **{name: row[name] for name in _OF_EXCHANGE},
    )


def _sample(rows: Sequence[Row], pool: Tables) -> CostSample:
    first = rows[0]
    infeasible, device = None, first["infeasible_device"]
    if device is not None:
        infeasible = Infeasible(device=device, asked_bytes=first["asked_bytes"], free_bytes=first["free_bytes"])
    unknown_ms = nan if first["testbed"] == TRACED else 0.0
    phases = torch.tensor(
        [[unknown_ms if row[name] is None else row[name] for name in _PHASES] for row in rows]
    )  # [D, 4]
    return CostSample(
        task=task_from_row(first | {"memory_bytes": first["capacity_bytes"]}, pool),
        placement=Placement.whole(first["placement"], first["num_devices"]),
        costs=DeviceCosts(phases),
        versions=json.loads(first["versions"]),
        infeasible=infeasible,
        **{name: first[name] for name in _OF_SAMPLE},
    )
