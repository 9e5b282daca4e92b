"""Which device holds which table, and whether the tables fit.

The functions are batched: `B` placements of the same `T` tables at once. Negative entries are tables not placed yet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dreamshard.tables import Tables


@dataclass(frozen=True)
class ColumnShard:
    """Columns `start` to `end` (exclusive) of table number `table` of a task."""

    table: int
    start: int
    end: int


@dataclass(frozen=True)
class Placement:
    """One device per table, or per column shard if any table is split.

    Attributes:
        device: `[T]` device of each table of the task, in the task's order; `[S]` of each shard if there are `shards`.
        num_devices: `D`; entries of `device` are in `0..D-1`.
        shards: `S` column shards, or None if every table is whole. `PlacementTask.sharded` turns shards into tables.
    """

    device: Int[Tensor, " T"]
    num_devices: int
    shards: tuple[ColumnShard, ...] | None = None

    def __post_init__(self) -> None:
        outside = (self.device < 0) | (self.device >= self.num_devices)
        if outside.any():
            raise ValueError(
                f"the placement names devices {self.device[outside].unique().tolist()[:5]}, but the task has devices "
                f"0..{self.num_devices - 1}; a table on such a device would be dropped"
            )
        if self.shards is not None and len(self.shards) != len(self.device):
            raise ValueError(
                f"the placement has {len(self.shards)} column shards but devices for {len(self.device)}; "
                "give one device per shard, or columns would be dropped"
            )

    def tables_of(self, device: int) -> list[int]:
        """Indices of the tables (or shards) that `device` holds."""
        return torch.nonzero(self.device == device).flatten().tolist()


def device_memory_bytes(
    memory_bytes: Int[Tensor, " T"] | Int[Tensor, "B T"], device: Int[Tensor, "B T"], num_devices: int
) -> Int[Tensor, "B D"]:
    """Sum table memory per device; negative entries of `device` are not placed yet."""
    placed = device >= 0  # [B, T]
    totals = memory_bytes.new_zeros(device.shape[0], num_devices)  # [B, D]
    return totals.scatter_add(1, device.clamp(min=0), memory_bytes * placed)


def is_legal(
    memory_bytes: Int[Tensor, " T"], device: Int[Tensor, "B T"], num_devices: int, capacity_bytes: int
) -> Bool[Tensor, " B"]:
    """Whether every table is placed and no device holds more than `capacity_bytes`."""
    complete = ((device >= 0) & (device < num_devices)).all(dim=1)  # [B]
    totals = device_memory_bytes(memory_bytes, device.clamp(max=num_devices - 1), num_devices)  # [B, D]
    return complete & (totals <= capacity_bytes).all(dim=1)


def column_shards(tables: Tables, placement: Placement) -> tuple[ColumnShard, ...]:
    """The columns behind each entry of `placement.device`; all columns of a table that is whole."""
    return placement.shards or tuple(ColumnShard(t, 0, dim) for t, dim in enumerate(tables.dim.tolist()))
