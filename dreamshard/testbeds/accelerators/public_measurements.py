"""The public measurements of collectives in `measurements/`."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

Operation = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce"]
"""NCCL's collectives that training with sharded tables needs."""
MEASUREMENTS = Path(__file__).parent / "measurements"


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


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part)
