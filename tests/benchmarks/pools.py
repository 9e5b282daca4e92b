"""Table pools and tasks for benchmarks: Meta's tables by their published statistics, without drawing lookups."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import torch

from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.meta import population
from dreamshard.workloads.workload import mixed_dims

Dims = Literal["dim16", "mixed"]
Memory = Literal["generous", "tight"]
Split = Literal["train", "validation", "test"]
BATCH = 65_536
"""Samples of a step, as in the paper."""
ALL_DIMS: tuple[Dims, ...] = ("dim16", "mixed")


@dataclass(frozen=True, order=True)
class Size:
    """Tables and devices of a task."""

    tables: int
    devices: int

    def __str__(self) -> str:
        return f"{self.tables}x{self.devices}"


TRAINED = Size(50, 4)


@cache
def meta_tables(source: str, dims: Dims) -> Tables:
    """All tables of a Meta data set from its fitted population: rows, lookups and distinct rows per bin."""
    tables = population(source)
    unique = tables.rows_by_bin.sum(axis=1)
    drawn = mixed_dims(np.random.default_rng([0, 1]).random(len(unique)))
    means = np.array([2**j // 2 + 1 + (1 - law[:-1]).sum() for j, law in enumerate(tables.laws)])  # counts in each bin
    lookups = np.maximum(np.rint(tables.rows_by_bin @ means).astype(np.int64), unique)
    sizes = tables.rows, np.full(len(unique), 16) if dims == "dim16" else drawn, lookups / tables.batch_size
    columns = *sizes, tables.rows_by_bin / np.maximum(unique, 1)[:, None], lookups, unique
    return Tables(tuple(f"{source}/t{t:04}" for t in range(len(unique))), *map(torch.from_numpy, columns))


def pool_of(dims: Dims, split: Split) -> Tables:
    """Half of the 2021 tables to train on, a quarter for choices, or the last quarter and all 2022 tables as the test."""
    train, rest = halves(meta_tables("meta-dlrm-2021", dims), seed=0)
    if split == "train":
        return train
    validation, test = halves(rest, seed=1)
    return validation if split == "validation" else concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def halves(pool: Tables, seed: int) -> tuple[Tables, Tables]:
    """The pool in two at random, as in the paper, each in its order."""
    drawn = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed)).split(len(pool) // 2)
    return pool.select(drawn[0].sort().values), pool.select(torch.cat(drawn[1:]).sort().values)


def tasks(pool: Tables, size: Size, count: int, seed: int, memory: Memory = "generous") -> list[PlacementTask]:
    """Seeded tasks; a device has three times an even share of memory, or 1.2 times if memory is tight.

    A device always has room for slightly more than the largest table, so that a legal placement exists.
    """
    names = [f"{size}-{memory}-{seed}-{i:03}" for i in range(count)]
    return [
        task_of(tables, size.devices, name, memory)
        for tables, name in zip(drawn(pool, size, count, seed), names, strict=True)
    ]


def drawn(pool: Tables, size: Size, count: int, seed: int) -> list[Tables]:
    """Seeded draws of distinct tables."""
    generator = torch.Generator().manual_seed(seed)
    return [pool.select(torch.randperm(len(pool), generator=generator)[: size.tables]) for _ in range(count)]


def task_of(tables: Tables, num_devices: int, name: str, memory: Memory = "generous") -> PlacementTask:
    """A task of these tables, with devices of as much memory as those of `tasks` have."""
    slack, largest_slack = (3.0, 1.5) if memory == "generous" else (1.2, 1.05)
    table_bytes = PlacementTask(tables, 1, 0, "fp16").table_bytes.double()
    room = max(slack * float(table_bytes.sum()) / num_devices, largest_slack * float(table_bytes.max()))
    return PlacementTask(tables, num_devices, int(room), "fp16", "sgd", name)


def repeated(pool: Tables, count: int) -> Tables:
    """At least `count` tables: the pool as often as that takes, under new names where it is more than once."""
    times = -(-count // len(pool))
    copies = [replace(pool, names=tuple(f"{name}#{copy}" for name in pool.names)) for copy in range(times)]
    return pool if times == 1 else concatenate(copies)
