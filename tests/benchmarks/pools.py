"""Table pools and tasks for benchmarks: Meta's tables by their published statistics, without drawing lookups."""

from functools import cache
from typing import Literal

import torch

from dreamshard.sweep.tables import BATCH as BATCH
from dreamshard.sweep.tables import Dims as Dims
from dreamshard.sweep.tables import Size as Size
from dreamshard.sweep.tables import meta_tables as meta_tables
from dreamshard.sweep.tables import repeated as repeated
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sampling import split_tables
from dreamshard.tasks import PlacementTask

Memory = Literal["generous", "tight"]

ALL_DIMS: tuple[Dims, ...] = ("dim16", "mixed")


TRAINED = Size(50, 4)
SIZES = (Size(20, 4), TRAINED, Size(100, 8), Size(200, 8), Size(800, 128))


@cache
def pools(dims: Dims) -> tuple[Tables, Tables]:
    """Training tables (half of the 2021 data set) and unseen tables (its other half and the 2022 data set)."""
    train, test = split_tables(meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(0))
    return train, concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def tasks(pool: Tables, size: Size, count: int, seed: int, memory: Memory = "generous") -> list[PlacementTask]:
    """Seeded tasks; a device has three times an even share of memory, or 1.2 times if memory is tight.

    A device always has room for slightly more than the largest table, so that a legal placement exists.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        tables = pool.select(torch.randperm(len(pool), generator=generator)[: size.tables])
        found.append(task_of(tables, size.devices, f"{size}-{memory}-{seed}-{i:03}", memory))
    return found


def task_of(tables: Tables, num_devices: int, name: str, memory: Memory = "generous") -> PlacementTask:
    """A task of these tables, with devices of as much memory as those of `tasks` have."""
    slack, largest_slack = (3.0, 1.5) if memory == "generous" else (1.2, 1.05)
    table_bytes = tables.memory_bytes("fp16", "sgd").double()
    room = max(slack * float(table_bytes.sum()) / num_devices, largest_slack * float(table_bytes.max()))
    return PlacementTask(tables, num_devices, int(room), "fp16", "sgd", name)


def large_task(size: Size, dims: Dims = "mixed") -> PlacementTask:
    """One task of any size: the unseen tables repeated under new names."""
    return tasks(repeated(pools(dims)[1], size.tables), size, 1, seed=0)[0]
