"""Readers of the public measurements in `measurements/`; nothing here knows a model."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Operation = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce"]
"""NCCL's collectives that training with sharded tables needs."""
MEASUREMENTS = Path(__file__).parent / "measurements"


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One measured time of an embedding operator; the tuples have one entry per kind of table, `num_tables` in all.

    Attributes:
        gpu: as the source names it.
        operation: `fwd`, `bwd` (with the fused optimizer) or `fwd+bwd`.
        pooling: lookups per sample.
        precision: of the weights; fp32 where the source does not say.
        distinct: distinct rows per call over all tables, where the source says.
    """

    gpu: str
    operation: str
    num_tables: int
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    pooling: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    precision: str
    time_us: float
    source: str
    notes: str
    distinct: float | None


@cache
def collective_times(operation: Operation = "all_to_all") -> Mapping[str, Mapping[int, Mapping[int, float]]]:
    """Microseconds by GPU, number of GPUs and bytes, with the newest NCCL that was measured.

    Bytes are nccl-tests' size: what each sends in all in an all-to-all, what each begins with in a reduce-scatter or an
    all-reduce, and what each ends with in an all-gather.
    """
    name = "alltoall.csv" if operation == "all_to_all" else "collectives.csv"
    with (MEASUREMENTS / name).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("operation", operation) == operation]
    newest: dict[str, str] = {}
    for row in rows:
        newest[row["gpu"]] = max(newest.get(row["gpu"], ""), row["nccl"], key=_version)
    times: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        if row["nccl"] == newest[row["gpu"]]:
            by_bytes = times.setdefault(row["gpu"], {}).setdefault(int(row["num_gpus"]), {})
            by_bytes[int(row["bytes_per_gpu"])] = float(row["time_us"])
    return times


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """Every row of `tbe.csv`, in the file's order."""
    with (MEASUREMENTS / "tbe.csv").open(newline="") as file:
        return tuple(_kernel_row(row) for row in csv.DictReader(file))


def _kernel_row(row: Mapping[str, str]) -> KernelRow:
    distinct = re.search(r"avg distinct rows per step ([\d.]+)", row["notes"])
    return KernelRow(
        gpu=row["gpu"],
        operation=row["op"],
        num_tables=int(row["T"]),
        rows=_numbers(row["E"]),
        dims=_numbers(row["D"]),
        pooling=tuple(float(value) for value in row["L"].split(",")),
        batch_sizes=_numbers(row["B"]),
        precision=row["dtype_weights"] or "fp32",
        time_us=float(row["time_us"]),
        source=row["source"],
        notes=row["notes"],
        distinct=float(distinct[1]) if distinct else None,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(value) for value in text.split(","))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part)
