"""The frozen tasks: Meta's 2021 and 2022 tables with dim 16 or mixed dims, and MLPerf's DLRM-DCNv2."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from dreamshard.constraints import Constraints
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A task and what is asked of it.

    Attributes:
        dims: of the pool that its tables come from; names the network that places them.
        hardware: of the preset that places them too; empty for none.
        current: device of each table in the current plan; empty for none.
    """

    task: PlacementTask
    dims: str
    hardware: str
    current: list[int]


@cache
def pool(name: str) -> Tables:
    """The tables of one pool: `dim16-train`, `dim16-test`, `mixed-train`, `mixed-test` or `mlperf`."""
    columns = pq.read_table(HERE / "tables.parquet", filters=[("pool", "=", name)]).to_pydict()
    sizes = [torch.tensor(columns[column]) for column in ("rows", "dim", "pooling_factor")]
    counts = [torch.tensor(columns[column]) for column in ("lookups", "unique_rows")]
    return Tables(tuple(columns["name"]), *sizes, torch.from_numpy(np.asarray(columns["bins"], np.float64)), *counts)


def cases() -> list[Case]:
    """All tasks whose plans are judged."""
    return [_case(spec) for spec in json.loads((HERE / "tasks.json").read_text())]


def training_tasks(dims: str) -> list[PlacementTask]:
    """50 tasks of 50 training tables on 4 devices."""
    generator = np.random.default_rng(5)
    tables = pool(f"{dims}-train")
    drawn = [generator.permutation(len(tables))[:50].tolist() for _ in range(50)]
    return [
        PlacementTask(tables.select(index), 4, 16 * 2**30, "fp16", "sgd", f"{dims}-{i}")
        for i, index in enumerate(drawn)
    ]


def _case(spec: dict[str, Any]) -> Case:
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in spec.get("constraints", {}).items()
    }
    for groups in ("together", "apart"):
        if groups in given:
            given[groups] = tuple(frozenset(group) for group in given[groups])
    if "pinned" in given:
        given["pinned"] = {name: tuple(devices) for name, devices in given["pinned"].items()}
    if "memory_bytes_of" in given:
        given["memory_bytes_of"] = {int(device): size for device, size in given["memory_bytes_of"].items()}
    tables, how = pool(spec["pool"]).select(spec["tables"]), (spec["precision"], "sgd", spec["name"])
    task = PlacementTask(tables, spec["num_devices"], spec["memory_bytes"], *how, spec.get("devices_per_host"))
    task = replace(task, constraints=Constraints(**given))
    return Case(task, spec["pool"].removesuffix("-test"), spec.get("hardware", ""), spec.get("current", []))
