"""Which device holds which table, and whether the devices have room for it.

The functions are batched: `B` placements of the same `T` tables at once. A negative entry is a table not placed yet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """One device per table.

    Attributes:
        device: `[T]` device index of each table of the task, in the task's order.
        num_devices: `D`; entries of `device` lie in `0..D-1`.
    """

    device: Int[Tensor, " T"]
    num_devices: int

    def __post_init__(self) -> None:
        if ((self.device < 0) | (self.device >= self.num_devices)).any():
            bad = self.device[(self.device < 0) | (self.device >= self.num_devices)].unique().tolist()
            raise ValueError(
                f"the placement names devices {bad[:5]}, but the task has devices 0..{self.num_devices - 1}; "
                "a table on such a device would be dropped"
            )

    def tables_of(self, device: int) -> list[int]:
        """Indices of the tables that `device` holds."""
        return torch.nonzero(self.device == device).flatten().tolist()


@dataclass(frozen=True)
class Move:
    """A table that two placements put on different devices."""

    table: str
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


def moves(names: tuple[str, ...], memory_bytes: Int[Tensor, " T"], before: Placement, after: Placement) -> list[Move]:
    """The tables to move to get from `before` to `after`, largest first."""
    changed = torch.nonzero(before.device != after.device).flatten().tolist()
    found = [Move(names[t], int(before.device[t]), int(after.device[t]), int(memory_bytes[t])) for t in changed]
    return sorted(found, key=lambda move: -move.memory_bytes)
