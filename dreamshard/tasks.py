"""Placement tasks: tables to place on equal devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files.foreign import MOST_DEVICES
from dreamshard.files.text import gib
from dreamshard.placement import SHARDING_TYPES, SPLIT_BY_COLUMNS, ShardingType
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW,
    BYTES_PER_ROW_STATE,
    BYTES_PER_WEIGHT,
    DIM_MULTIPLE,
    Optimizer,
    Precision,
    Tables,
    parent_name,
)

UNCACHED_ROW_BYTES = 4
"""On the device, of a table in host memory: fbgemm's map from each row to its place in the cache, int32."""


def check_devices(name: str, num_devices: int, devices_per_host: int | None = None) -> None:
    """Raise a ValueError for numbers of devices and of devices per host that `name` cannot have."""
    if not 1 <= num_devices <= MOST_DEVICES:
        raise ValueError(f"{name} asks for {num_devices} devices; a placement has 1 to {MOST_DEVICES}")
    if devices_per_host is not None and not 1 <= devices_per_host <= MOST_DEVICES:
        raise ValueError(f"{name} has {devices_per_host} devices per host; a host has 1 to {MOST_DEVICES}")


@dataclass(frozen=True)
class PlacementTask:
    """Tables to place on `num_devices` equal devices.

    Attributes:
        tables: the `T` tables.
        num_devices: `D`.
        memory_bytes: bytes for tables on each device.
        optimizer: fused into the backward pass; some keep state per row.
        name: in logs and in the lake.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on; None for as many per host as the
            hardware has.
        batch_size: training samples per step for which costs are predicted, None for as many as were measured; a testbed
            measures the batch that it was set up with.
        precision_of: of single tables, instead of `precision`.
        constraints: what a placement must respect.

    Raises:
        ValueError: no placement is legal: the smallest shard of a table exceeds a device, all tables exceed all devices, or
            constraints contradict one another.
    """

    tables: Tables
    num_devices: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    name: str = "task"
    devices_per_host: int | None = None
    batch_size: int | None = None
    precision_of: Mapping[str, Precision] = field(default_factory=dict)
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        if len(self.tables) == 0:
            raise ValueError(f"{self.name} has no tables; give at least one")
        check_devices(self.name, self.num_devices, self.devices_per_host)
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"{self.name} has a batch of {self.batch_size} samples; a step needs at least 1")
        constraints = self.constraints
        if constraints is not UNCONSTRAINED:
            sizes = zip(self.tables.names, self.tables.dim.tolist(), strict=True)
            dims = {name: dim for name, dim in sizes if parent_name(name) == name}
            names = [parent_name(name) for name in self.tables.names]
            if reason := constraints.contradiction(names, self.num_devices, dims):
                raise ValueError(f"the constraints of {self.name} cannot be met: {reason}; change one of them")
        capacity_bytes = self.capacity_bytes
        room, total = int(capacity_bytes.max()), sum(capacity_bytes.tolist())
        reserved = f" once {gib(constraints.reserve_bytes)} are reserved" if constraints.reserve_bytes else ""
        smallest = self._smallest_shard_bytes()  # [T]
        largest = int(smallest.argmax())
        if int(smallest[largest]) > room:
            types = constraints.sharding_types_for(parent_name(self.tables.names[largest]))
            other = "other ways to shard it" if set(SHARDING_TYPES) - set(types) else "a cache in front of host memory"
            raise ValueError(
                f"table {self.tables.names[largest]!r} of {self.name} needs {gib(int(smallest[largest]))} in its smallest "
                f"shard ({' or '.join(types)}), more than the {gib(room)} of a device{reserved}; allow {other} or more memory"
            )
        needed = int(self.table_bytes.sum())
        if needed > total and not constraints.caching and not constraints.cached_share_of:
            raise ValueError(
                f"the {len(self.tables)} tables of {self.name} need {gib(needed)}, more than the {gib(total)} of "
                f"{self.num_devices} devices together{reserved}; add devices or memory, or allow a cache"
            )

    @property
    def weight_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of one weight."""
        return self._by_precision(BYTES_PER_WEIGHT)

    @property
    def row_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes per row beside weights and state per weight: quantisation, and the optimizer's state per row."""
        return self._by_precision(BYTES_PER_ROW) + BYTES_PER_ROW_STATE[self.optimizer]

    @property
    def element_state_bytes(self) -> int:
        """Bytes of optimizer state per weight."""
        return BYTES_PER_ELEMENT_STATE[self.optimizer]

    @property
    def table_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of each table on a device."""
        per_row = self.tables.dim * (self.weight_bytes + self.element_state_bytes) + self.row_bytes
        return self.tables.rows * per_row

    @property
    def capacity_bytes(self) -> Int[Tensor, " D"]:
        """`[D]` room for tables on each device, without what is reserved; none where no table may be."""
        constraints = self.constraints
        room = torch.full((self.num_devices,), self.memory_bytes)
        for device, memory_bytes in constraints.memory_bytes_of.items():
            room[device] = memory_bytes
        room = (room - constraints.reserve_bytes).clamp(min=0)
        room[list(constraints.excluded_devices)] = 0
        return room

    @property
    def whole_tables(self) -> frozenset[str]:
        """Names of its tables, without regard to how they are split by columns: what makes two tasks the same."""
        return frozenset(parent_name(name) for name in self.tables.names)

    def _by_precision(self, num_bytes: Mapping[Precision, int]) -> Int[Tensor, " T"]:
        if not self.precision_of:
            return torch.full((len(self.tables),), num_bytes[self.precision])
        names = map(parent_name, self.tables.names)
        return torch.tensor([num_bytes[self.precision_of.get(name, self.precision)] for name in names])

    def _smallest_shard_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` device memory of the smallest shard that the allowed ways to shard leave of each table."""
        rows, per_weight = self.tables.rows, self.weight_bytes + self.element_state_bytes
        per_host = min(self.num_devices, self.devices_per_host or self.num_devices)
        blocks = {"row_wise": self.num_devices, "table_row_wise": per_host, "grid_shard": per_host}
        by_type = {}
        for sharding_type in SHARDING_TYPES:
            columns = DIM_MULTIPLE if sharding_type in SPLIT_BY_COLUMNS else self.tables.dim
            held = -(-rows // blocks.get(sharding_type, 1))
            by_type[sharding_type] = held * (columns * per_weight + self.row_bytes)
        constraints = self.constraints

        def smallest(types: tuple[ShardingType, ...]) -> Int[Tensor, " T"]:
            return torch.stack([by_type[each] for each in types]).amin(dim=0)

        sizes = smallest(constraints.sharding_types)
        cached = rows * UNCACHED_ROW_BYTES // self.num_devices
        if constraints.caching and not constraints.never_cached:
            return torch.minimum(sizes, cached)
        if constraints.caching or constraints.sharding_types_of or constraints.cached_share_of:
            for t, name in enumerate(map(parent_name, self.tables.names)):
                if constraints.may_be_cached(name):
                    sizes[t] = torch.minimum(sizes[t], cached[t])
                elif name in constraints.sharding_types_of:
                    sizes[t] = smallest(constraints.sharding_types_of[name])[t]
        return sizes
