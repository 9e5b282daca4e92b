"""Placements: how each table of a task is sharded, in TorchRec's words, and on which devices.

table_wise      whole, on one device
column_wise     ranges of columns, each on one device
row_wise        a block of rows on every device
table_row_wise  a block of rows on every device of one host
grid_shard      ranges of columns, each with a block of rows on every device of one host
data_parallel   a copy on every device, each for its own samples
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.tables import DIM_MULTIPLE

ShardingType = Literal["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel"]
SHARDING_TYPES: tuple[ShardingType, ...] = get_args(ShardingType)

ON_ONE_DEVICE: tuple[ShardingType, ...] = ("table_wise", "column_wise")
ON_ONE_HOST: tuple[ShardingType, ...] = ("table_row_wise", "grid_shard")
ON_EVERY_DEVICE: tuple[ShardingType, ...] = ("row_wise", "data_parallel")
SPLIT_BY_COLUMNS: tuple[ShardingType, ...] = ("column_wise", "grid_shard")

Columns = tuple[tuple[int, int], ...]
"""First and last (exclusive) column of each range."""

Block = tuple[int, tuple[int, int], tuple[int, int]]
"""Device, first and last (exclusive) row, first and last column of a shard."""


@dataclass(frozen=True)
class TableSharding:
    """How one table is sharded, and where.

    Attributes:
        sharding_type: by TorchRec's name.
        columns: ranges of a column-wise or grid-sharded table, in order; empty for tables that keep their columns together.
        where: device of each range, or host for `ON_ONE_HOST`; empty for a table on every device.
        cached_share: share of the rows that device memory caches while the table is in host memory; None for a table in
            device memory.

    >>> ds.TableSharding("column_wise", columns=((0, 64), (64, 128)), where=(0, 3)).ranges(128)
    ((0, 64), (64, 128))
    """

    sharding_type: ShardingType
    columns: Columns = ()
    where: tuple[int, ...] = ()
    cached_share: float | None = None

    def __post_init__(self) -> None:
        ends, share = [0, *(end for _, end in self.columns)], self.cached_share
        places = 0 if self.sharding_type in ON_EVERY_DEVICE else max(len(self.columns), 1)
        problem = ""
        if [start for start, _ in self.columns] != ends[:-1] or any(a >= b for a, b in pairwise(ends)):
            problem = "ranges of columns follow one another from 0, so that each column is held once"
        elif bool(self.columns) != (self.sharding_type in SPLIT_BY_COLUMNS):
            problem = f"{' and '.join(SPLIT_BY_COLUMNS)} tables have ranges of columns, and no others"
        elif len(self.where) != places:
            problem = f"give {places} places"
        elif share is not None and (not 0 < share <= 1 or self.sharding_type == "data_parallel"):
            problem = f"a cached share is in (0, 1], not {share}, and copies have none"
        if problem:
            raise ValueError(f"{self.sharding_type} with columns {self.columns} at {self.where}: {problem}")

    @classmethod
    def by_columns(cls, columns: Columns, where: Sequence[int]) -> "TableSharding":
        """Column-wise, each range on one device; table-wise if there is one range."""
        if len(columns) == 1:
            return cls("table_wise", where=tuple(where))
        return cls("column_wise", columns, tuple(where))

    @property
    def is_by_columns(self) -> bool:
        """Whether it is whole or split by columns, in device memory."""
        return self.sharding_type in ON_ONE_DEVICE and self.cached_share is None

    def ranges(self, dim: int) -> Columns:
        """Ranges of columns of a table of `dim` columns; one range of all if it is not split."""
        return self.columns or ((0, dim),)

    def blocks(self, rows: int, dim: int, num_devices: int, devices_per_host: int) -> list[Block]:
        """The shards of a table of this size, range by range of its columns, in TorchRec's order; some may hold no rows."""
        first, count = list(self.where), 1
        if self.sharding_type in ON_EVERY_DEVICE:
            first, count = [0], num_devices
        elif self.sharding_type in ON_ONE_HOST:
            first, count = [host * devices_per_host for host in self.where], devices_per_host
        blocks = [(0, rows)] * count
        if self.sharding_type != "data_parallel":  # as TorchRec cuts them: equal blocks, the last ones smaller or empty
            ends = [min(part * -(-rows // count), rows) for part in range(count + 1)]
            blocks = list(pairwise(ends))
        return [
            (device + part, block, columns)
            for device, columns in zip(first, self.ranges(dim), strict=True)
            for part, block in enumerate(blocks)
        ]


@dataclass(frozen=True)
class Placement:
    """How each table of a task is sharded, and where.

    Attributes:
        tables: one per table of the task, in the task's order.
        num_devices: `D`.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on; the last host may have fewer.

    >>> ds.Placement.whole([0, 1, 0], num_devices=2).tables[1]
    TableSharding(sharding_type='table_wise', columns=(), where=(1,), cached_share=None)
    """

    tables: tuple[TableSharding, ...]
    num_devices: int
    devices_per_host: int

    def __post_init__(self) -> None:
        for sharding in {id(table): table for table in self.tables}.values():
            on_host = sharding.sharding_type in ON_ONE_HOST
            if on_host and self.num_devices % self.devices_per_host:
                raise ValueError(
                    f"{sharding.sharding_type} needs hosts of one size, but {self.num_devices} devices do not fill hosts of "
                    f"{self.devices_per_host}; choose another sharding type"
                )
            places, what = (self.num_hosts, "host") if on_host else (self.num_devices, "device")
            if any(not 0 <= place < places for place in sharding.where):
                raise ValueError(f"the placement names {what}s {sharding.where}, but there are {what}s 0..{places - 1}")

    @classmethod
    def whole(
        cls, device: Int[Tensor, " T"] | Sequence[int], num_devices: int, devices_per_host: int | None = None
    ) -> "Placement":
        """Place whole tables; `device` is `[T]`."""
        numbers = device.tolist() if isinstance(device, Tensor) else device
        on = {d: TableSharding("table_wise", where=(d,)) for d in set(numbers)}
        return cls(tuple(on[d] for d in numbers), num_devices, devices_per_host or num_devices)

    @cached_property
    def device(self) -> Int[Tensor, " T"]:
        """`[T]` device of each table; a ValueError says that some are not whole."""
        if not self.is_whole:
            raise ValueError(
                f"tables are sharded {', '.join(sorted(self.sharding_types))}, so they have no one device each; "
                "read `tables`, whose `columns` and `where` say which device has which columns"
            )
        return torch.tensor([sharding.where[0] for sharding in self.tables], dtype=torch.int64)

    @property
    def is_whole(self) -> bool:
        """Whether every table is whole, in the memory of one device."""
        return all(table.is_by_columns and not table.columns for table in self.tables)

    @property
    def num_hosts(self) -> int:
        """`H`."""
        return -(-self.num_devices // self.devices_per_host)

    @property
    def sharding_types(self) -> frozenset[ShardingType]:
        """Sharding types that occur."""
        return frozenset(sharding.sharding_type for sharding in self.tables)

    def on_hosts_of(self, devices_per_host: int | None) -> "Placement":
        """The same on hosts of so many devices, if no table is on one host; None changes nothing."""
        if devices_per_host is None or self.sharding_types & set(ON_ONE_HOST):
            return self
        return replace(self, devices_per_host=min(devices_per_host, self.num_devices))


def even_columns(dim: int, parts: int) -> Columns:
    """About equally wide ranges of columns, each of a multiple of `DIM_MULTIPLE`; at most `most_ranges`."""
    units = dim // DIM_MULTIPLE
    ends = [DIM_MULTIPLE * (units * part // parts) for part in range(parts)] + [dim]
    return tuple(pairwise(ends))


def most_ranges(dim: Any, narrowest: Any = 1) -> Any:
    """The most ranges of `even_columns` of at least `narrowest` columns each, of integers or arrays; at least one."""
    return np.maximum(dim // np.maximum(-(-narrowest // DIM_MULTIPLE) * DIM_MULTIPLE, DIM_MULTIPLE), 1)
