"""Placement tasks: tables to place on devices of a given size, and how they are drawn from a pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import Placement, is_legal
from dreamshard.tables import Optimizer, Precision, Tables


@dataclass(frozen=True)
class PlacementTask:
    """Tables to place on `num_devices` equal devices.

    Attributes:
        tables: the `T` tables.
        num_devices: `D`.
        memory_bytes: bytes for tables on each device.
        precision: of the weights; sets their bytes and what is measured.
        optimizer: fused into the backward pass; sets bytes of state and what is measured.
        name: how logs and the lake call the task.

    Raises:
        ValueError: no placement can be legal: a table is larger than a device, or all devices together are too small.
    """

    tables: Tables
    num_devices: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    name: str = "task"

    def __post_init__(self) -> None:
        if len(self.tables) == 0:
            raise ValueError(f"{self.name} has no tables, so there is nothing to place; give at least one")
        if self.num_devices < 1:
            raise ValueError(f"{self.name} asks for {self.num_devices} devices; a placement needs at least 1")
        table_bytes = self.table_bytes
        largest = int(table_bytes.argmax())
        if int(table_bytes[largest]) > self.memory_bytes:
            raise ValueError(
                f"table {self.tables.names[largest]!r} of {self.name} needs {_gib(int(table_bytes[largest]))}, more "
                f"than the {_gib(self.memory_bytes)} of a device, so no placement is legal; give devices more memory, "
                "halve the precision, or split the table by columns"
            )
        total, room = int(table_bytes.sum()), self.num_devices * self.memory_bytes
        if total > room:
            raise ValueError(
                f"the {len(self.tables)} tables of {self.name} need {_gib(total)}, more than the {_gib(room)} of "
                f"{self.num_devices} devices together, so no placement is legal; add devices or memory"
            )

    @property
    def table_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes each table takes on its device."""
        return self.tables.memory_bytes(self.precision, self.optimizer)

    def is_legal(self, placement: Placement) -> bool:
        """Whether `placement` places every table of this task within every device's memory."""
        if placement.num_devices != self.num_devices or len(placement.device) != len(self.tables):
            return False
        return bool(is_legal(self.table_bytes, placement.device[None], self.num_devices, self.memory_bytes)[0])


def split_pool(pool: Tables, generator: torch.Generator) -> tuple[Tables, Tables]:
    """Disjoint halves of the pool, for training and for testing, each in the pool's order."""
    order = torch.randperm(len(pool), generator=generator)
    half = len(pool) // 2
    return pool.select(order[:half].sort().values), pool.select(order[half:].sort().values)


def sample_tasks(
    pool: Tables,
    num_tasks: int,
    tables_per_task: int | Sequence[int],
    num_devices: int,
    memory_bytes: int,
    generator: torch.Generator,
    *,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    name: str = "task",
) -> list[PlacementTask]:
    """Tasks of distinct tables drawn from `pool`; task `i` is called `{name}-{i:03}`.

    Args:
        tables_per_task: one number for all tasks, or choices to draw from.

    Raises:
        ValueError: the pool is smaller than a task, or a task drawn fits no placement.
    """
    choices = [tables_per_task] if isinstance(tables_per_task, int) else list(tables_per_task)
    if max(choices) > len(pool):
        raise ValueError(
            f"a task of {max(choices)} tables cannot be drawn from a pool of {len(pool)}; each table occurs once in a "
            "task, so ask for fewer tables per task or ingest a larger workload"
        )
    tasks = []
    for i in range(num_tasks):
        size = choices[int(torch.randint(len(choices), (), generator=generator))]
        chosen = torch.randperm(len(pool), generator=generator)[:size]
        tasks.append(
            PlacementTask(pool.select(chosen), num_devices, memory_bytes, precision, optimizer, f"{name}-{i:03}")
        )
    return tasks


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
