"""Every way to shard a table, with TorchRec's names, and where the shards are.

table_wise      whole, on one device
column_wise     ranges of columns, each on one device
row_wise        a block of rows on every device
table_row_wise  a block of rows on every device of one host
grid_shard      ranges of columns, each with a block of rows on every device of one host
data_parallel   a copy on every device, each for its own samples
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import torch

from dreamshard.placement import ColumnShard, Placement, column_shards
from dreamshard.tables import DIM_MULTIPLE, Tables, padded_dim

ShardingType = Literal["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel"]
SHARDING_TYPES: tuple[ShardingType, ...] = get_args(ShardingType)

ON_ONE_DEVICE: tuple[ShardingType, ...] = ("table_wise", "column_wise")
ON_ONE_HOST: tuple[ShardingType, ...] = ("table_row_wise", "grid_shard")
ON_EVERY_DEVICE: tuple[ShardingType, ...] = ("row_wise", "data_parallel")
SPLIT_BY_COLUMNS: tuple[ShardingType, ...] = ("column_wise", "grid_shard")


@dataclass(frozen=True, kw_only=True)
class TableSharding:
    """How one table is sharded, and where.

    Attributes:
        columns: first and last (exclusive) column of each range, in order; one range unless it is split by columns.
        where: device of each range, or its host where it is on one host; empty where it is on every device.
        cached_share: share of the rows that device memory caches while all of them are in host memory; None for a table in
            device memory.
    """

    sharding_type: ShardingType
    columns: tuple[tuple[int, int], ...]
    where: tuple[int, ...] = ()
    cached_share: float | None = None

    def __post_init__(self) -> None:
        ends = [0, *(end for _, end in self.columns)]
        if (
            not self.columns
            or [start for start, _ in self.columns] != ends[:-1]
            or any(a >= b for a, b in pairwise(ends))
        ):
            raise ValueError(
                f"a table is sharded into columns {self.columns}, which do not follow on one another from 0, so some would "
                "be dropped or held twice; give ranges that cover the table once"
            )
        if len(self.columns) > 1 and self.sharding_type not in SPLIT_BY_COLUMNS:
            raise ValueError(
                f"{self.sharding_type} keeps all columns together, got {len(self.columns)} ranges of columns"
            )
        if len(self.where) != (0 if self.sharding_type in ON_EVERY_DEVICE else len(self.columns)):
            raise ValueError(
                f"{self.sharding_type} with {len(self.columns)} ranges of columns names {len(self.where)} places; give one "
                "per range, or none for a table on every device"
            )
        if self.cached_share is not None and (not 0 < self.cached_share <= 1 or self.sharding_type == "data_parallel"):
            raise ValueError(
                f"a cache holds a share in (0, 1] of a table that is not data-parallel, got {self.cached_share} for "
                f"{self.sharding_type}"
            )

    @property
    def dim(self) -> int:
        """Columns of the table."""
        return self.columns[-1][1]


@dataclass(frozen=True)
class ShardedPlacement:
    """How each table of a task is sharded, and where.

    Attributes:
        tables: one per table of the task, in the task's order.
        num_devices: `D`.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on.

    Raises:
        ValueError: a place does not exist, or tables are on one host although hosts differ in size.
    """

    tables: tuple[TableSharding, ...]
    num_devices: int
    devices_per_host: int

    def __post_init__(self) -> None:
        for sharding in self.tables:
            on_host = sharding.sharding_type in ON_ONE_HOST
            if on_host and self.num_devices % self.devices_per_host:
                raise ValueError(
                    f"{sharding.sharding_type} spreads rows over the devices of a host, but {self.num_devices} devices do "
                    f"not fill hosts of {self.devices_per_host}; choose another way to shard, or another number per host"
                )
            places, what = (self.num_hosts, "host") if on_host else (self.num_devices, "device")
            if any(not 0 <= place < places for place in sharding.where):
                raise ValueError(
                    f"the placement names {what}s {sharding.where}, but there are {what}s 0..{places - 1}; a table "
                    "there would be dropped"
                )

    @classmethod
    def of(cls, placement: Placement, tables: Tables, devices_per_host: int | None = None) -> "ShardedPlacement":
        """A placement of whole tables and column shards."""
        by_table: list[list[tuple[ColumnShard, int]]] = [[] for _ in range(len(tables))]
        for shard, device in zip(column_shards(tables, placement), placement.device.tolist(), strict=True):
            by_table[shard.table].append((shard, device))
        shardings = []
        for shards in by_table:
            ordered = sorted(shards, key=lambda pair: pair[0].start)
            shardings.append(
                TableSharding(
                    sharding_type="table_wise" if len(ordered) == 1 else "column_wise",
                    columns=tuple((shard.start, shard.end) for shard, _ in ordered),
                    where=tuple(device for _, device in ordered),
                )
            )
        return cls(tuple(shardings), placement.num_devices, devices_per_host or placement.num_devices)

    @property
    def num_hosts(self) -> int:
        """The last of them may have fewer devices."""
        return -(-self.num_devices // self.devices_per_host)

    @property
    def sharding_types(self) -> frozenset[ShardingType]:
        """Those that occur."""
        return frozenset(sharding.sharding_type for sharding in self.tables)

    def as_columns(self) -> Placement | None:
        """The same as whole tables and column shards in device memory; None where a table is sharded otherwise."""
        if self.sharding_types - set(ON_ONE_DEVICE) or any(table.cached_share is not None for table in self.tables):
            return None
        shards = tuple(
            ColumnShard(t, start, end) for t, sharding in enumerate(self.tables) for start, end in sharding.columns
        )
        device = torch.tensor([place for sharding in self.tables for place in sharding.where], dtype=torch.int64)
        return Placement(device, self.num_devices, None if len(shards) == len(self.tables) else shards)

    def on_hosts_of(self, devices_per_host: int | None) -> "ShardedPlacement":
        """The same on hosts of so many devices, if no table is on one host; None changes nothing."""
        if devices_per_host is None or self.sharding_types & set(ON_ONE_HOST):
            return self
        return replace(self, devices_per_host=min(devices_per_host, self.num_devices))

    def with_table(self, table: int, sharding: TableSharding) -> "ShardedPlacement":
        """A copy in which one table is sharded otherwise."""
        return replace(self, tables=(*self.tables[:table], sharding, *self.tables[table + 1 :]))


def even_columns(dim: int, parts: int) -> tuple[tuple[int, int], ...]:
    """About equally wide ranges of columns, each of a multiple of `DIM_MULTIPLE`.

    Raises:
        ValueError: there are too few columns for that many ranges.
    """
    units = dim // DIM_MULTIPLE
    if not 1 <= parts <= max(units, 1):
        raise ValueError(
            f"{dim} columns do not make {parts} ranges of a multiple of {DIM_MULTIPLE}, so a range would have none; ask for "
            f"1 to {max(units, 1)}"
        )
    ends = [DIM_MULTIPLE * (units * part // parts) for part in range(parts)] + [dim]
    return tuple(pairwise(ends))


def most_ranges(dim: int, narrowest: int = 1) -> int:
    """The most ranges of `even_columns` of which none has fewer than `narrowest` columns; a whole table is always one."""
    return max(dim // max(padded_dim(narrowest), DIM_MULTIPLE), 1)


def row_blocks(rows: int, parts: int) -> Sequence[tuple[int, int]]:
    """Rows of each block, as TorchRec cuts them: equal blocks, the last ones smaller or empty."""
    block = -(-rows // parts)
    return [(min(part * block, rows), min((part + 1) * block, rows)) for part in range(parts)]
