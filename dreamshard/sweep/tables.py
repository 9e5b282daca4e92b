"""Tables and tasks of sweeps: Meta's tables by their published statistics, without drawing lookups.

Half of the 2021 data set is for training, a quarter for choices (validation); the other quarter and the whole 2022 data set,
whose batches are twice as large and whose rows are less often distinct, are for the test.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import torch

from dreamshard.tables import Tables, concatenate
from dreamshard.task_sampling import split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.meta_population import population
from dreamshard.workloads.meta_statistics import count_laws
from dreamshard.workloads.source import table_dims

Dims = Literal["dim16", "mixed"]
Split = Literal["train", "validation", "test"]

BATCH = 65_536
"""Samples of a step, as in the paper."""

_PAPER_BYTES = 5 * 2**30
"""Memory of a device in the paper (its section 4.1)."""

_EVEN_SHARE, _LARGEST = 1.5, 1.2  # of a device's memory, where those 5 GiB hold less than these


@dataclass(frozen=True, order=True)
class Size:
    """Tables and devices of a task."""

    tables: int
    devices: int

    def __str__(self) -> str:
        return f"{self.tables}x{self.devices}"


@cache
def meta_tables(source: str, dims: Dims) -> Tables:
    """All tables of a Meta data set from its fitted population: rows, lookups and distinct rows per bin."""
    tables = population(source)
    config = WorkloadConfig(source=source, dim=16 if dims == "dim16" else "mixed")
    unique = tables.rows_by_bin.sum(axis=1)
    means = np.asarray([law.mean for law in count_laws(source)])
    lookups = np.maximum(np.rint(tables.rows_by_bin @ means).astype(np.int64), unique)
    return Tables(
        tuple(f"{source}/t{t:04}" for t in range(len(unique))),
        torch.from_numpy(tables.rows),
        torch.from_numpy(table_dims(config, len(unique))),
        torch.from_numpy(lookups / tables.batch_size),
        torch.from_numpy(tables.rows_by_bin / np.maximum(unique, 1)[:, None]),
        torch.from_numpy(lookups),
        torch.from_numpy(unique),
    )


@cache
def pool_of(dims: Dims, split: Split) -> Tables:
    """The tables of one part; no two parts share any."""
    train, rest = split_tables(meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(0))
    if split == "train":
        return train
    validation, test = split_tables(rest, torch.Generator().manual_seed(1))
    return validation if split == "validation" else concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def draw_tasks(dims: Dims, split: Split, size: Size, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables; of more tables than the pool has, it is repeated under other names.

    Devices have the paper's 5 GiB, or more where a legal placement would otherwise hardly exist.
    """
    pool = repeated(pool_of(dims, split), size.tables)
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for number in range(count):
        tables = pool.select(torch.randperm(len(pool), generator=generator)[: size.tables])
        table_bytes = tables.memory_bytes("fp16", "sgd").double()
        needed = max(_EVEN_SHARE * float(table_bytes.sum()) / size.devices, _LARGEST * float(table_bytes.max()))
        name = f"{dims}-{split}-{size}-{seed}-{number:03}"
        tasks.append(PlacementTask(tables, size.devices, max(_PAPER_BYTES, int(needed)), "fp16", "sgd", name))
    return tasks


def repeated(pool: Tables, count: int) -> Tables:
    """At least `count` tables: the pool as often as that takes, under new names where it is more than once."""
    times = -(-count // len(pool))
    copies = [replace(pool, names=tuple(f"{name}#{copy}" for name in pool.names)) for copy in range(times)]
    return pool if times == 1 else concatenate(copies)
