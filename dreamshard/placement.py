"""Which device holds which table, and whether the devices have room for it.

The functions are batched: `B` placements of the same `T` tables at once. A negative entry is a table not placed yet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dreamshard.tables import Tables


@dataclass(frozen=True)
class ColumnShard:
    """Columns `start` to `end` of the task's table number `table`, placed on their own."""

    table: int
    start: int
    end: int


@dataclass(frozen=True)
class Placement:
    """One device per table; or, where tables are split by columns, per column shard.

    Attributes:
        device: `[T]` device index of each table of the task, in the task's order; `[S]` of each shard where there are
            `shards`.
        num_devices: `D`; entries of `device` lie in `0..D-1`.
        shards: what `device` places, where some table is split; None where every table is whole.
            `PlacementTask.sharded` turns both into a task and a placement of whole tables.
    """

    device: Int[Tensor, " T"]
    num_devices: int
    shards: tuple[ColumnShard, ...] | None = None

    def __post_init__(self) -> None:
        if ((self.device < 0) | (self.device >= self.num_devices)).any():
            bad = self.device[(self.device < 0) | (self.device >= self.num_devices)].unique().tolist()
            raise ValueError(
                f"the placement names devices {bad[:5]}, but the task has devices 0..{self.num_devices - 1}; "
                "a table on such a device would be dropped"
            )
        if self.shards is not None and len(self.shards) != len(self.device):
            raise ValueError(
                f"the placement has {len(self.shards)} column shards but devices for {len(self.device)}; "
                "give one device per shard, or columns would be dropped"
            )

    def tables_of(self, device: int) -> list[int]:
        """Indices of the tables (or shards) that `device` holds."""
        return torch.nonzero(self.device == device).flatten().tolist()


@dataclass(frozen=True)
class Move:
    """Columns of a table that two placements put on different devices."""

    table: str
    start: int
    end: int
    source: int
    target: int
    memory_bytes: int


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


def moves(tables: Tables, memory_bytes: Int[Tensor, " T"], before: Placement, after: Placement) -> list[Move]:
    """The columns to move to get from `before` to `after`, largest first; whole tables where none is split."""
    found = []
    held = _columns_held(tables, before)
    for shard, target in zip(_shards(tables, after), after.device.tolist(), strict=True):
        for (start, end), source in held[shard.table].items():
            low, high = max(start, shard.start), min(end, shard.end)
            if low < high and source != target:
                size = int(memory_bytes[shard.table]) * (high - low) // int(tables.dim[shard.table])
                found.append(Move(tables.names[shard.table], low, high, source, target, size))
    return sorted(found, key=lambda move: -move.memory_bytes)


def _shards(tables: Tables, placement: Placement) -> tuple[ColumnShard, ...]:
    return placement.shards or tuple(ColumnShard(t, 0, dim) for t, dim in enumerate(tables.dim.tolist()))


def _columns_held(tables: Tables, placement: Placement) -> list[dict[tuple[int, int], int]]:
    """Per table: column range to device."""
    held: list[dict[tuple[int, int], int]] = [{} for _ in tables.names]
    for shard, device in zip(_shards(tables, placement), placement.device.tolist(), strict=True):
        held[shard.table][shard.start, shard.end] = device
    return held
