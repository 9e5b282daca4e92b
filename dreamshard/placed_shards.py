"""The shards of a placement one by one: what each device stores and looks up, and what collectives carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.sharding import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    SHARDING_TYPES,
    ShardedPlacement,
    ShardingType,
    TableSharding,
    row_blocks,
)
from dreamshard.tables import Tables, shard_name
from dreamshard.tasks import UNCACHED_ROW_BYTES, PlacementTask

CACHED_ROW_BYTES = 16  # of fbgemm's cache beside a cached row: its index and its time of use, int64 each
GRADIENT_BYTES = 4  # per weight of a data-parallel table: its gradient is dense and fp32


@dataclass(frozen=True)
class PlacedShards:
    """Every shard of a placement, `S` of them, as a table of its own on its device.

    A block of rows has its share of the table's lookups; a data-parallel copy looks up its device's samples only.

    Attributes:
        tables: `[S]` as each device sees them.
        table: `[S]` number of the task's table.
        device: `[S]`.
        sharding_type: `[S]` positions in `SHARDING_TYPES`.
        rows: `[S, 2]` first and last (exclusive) row.
        columns: `[S, 2]` first and last (exclusive) column.
        batch_share: `[S]` share of the batch's samples whose lookups the shard gets: 1, or `1 / D` of a data-parallel copy.
        cached_share: `[S]` share of the rows in device memory: 1, or less where the table is in host memory.
        device_bytes: `[S]` of device memory.
        host_bytes: `[S]` of host memory.
        num_devices: `D`.
        devices_per_host: as in `ShardedPlacement`.
    """

    tables: Tables
    table: Int[Tensor, " S"]
    device: Int[Tensor, " S"]
    sharding_type: Int[Tensor, " S"]
    rows: Int[Tensor, "S 2"]
    columns: Int[Tensor, "S 2"]
    batch_share: Float[Tensor, " S"]
    cached_share: Float[Tensor, " S"]
    device_bytes: Int[Tensor, " S"]
    host_bytes: Int[Tensor, " S"]
    num_devices: int
    devices_per_host: int

    def is_any(self, *types: ShardingType) -> Tensor:
        """`[S]` whether a shard is of one of these types."""
        return torch.isin(self.sharding_type, torch.tensor([SHARDING_TYPES.index(each) for each in types]))

    def memory_bytes(self) -> Int[Tensor, " D"]:
        """Device memory that the shards of each device take."""
        return self.device_bytes.new_zeros(self.num_devices).index_add_(0, self.device, self.device_bytes)

    def collectives(self) -> "Collectives":
        """What the collectives of a step carry."""
        dims = self.tables.dim
        hosts = -(-self.num_devices // self.devices_per_host)
        whole, on_host = self.is_any(*ON_ONE_DEVICE), self.is_any("table_row_wise", "grid_shard")
        first = on_host & (self.device % self.devices_per_host == 0)  # one block of each range stands for all
        rows = self.is_any("row_wise") & (self.device == 0)
        copies = self.is_any("data_parallel") & (self.device == 0)
        return Collectives(
            all_to_all_dims=dims.new_zeros(self.num_devices).index_add_(0, self.device[whole], dims[whole]),
            row_wise_dims=int(dims[rows].sum()),
            host_dims=dims.new_zeros(hosts).index_add_(0, self.device[first] // self.devices_per_host, dims[first]),
            all_reduce_bytes=GRADIENT_BYTES * int((self.tables.rows * dims)[copies].sum()),
            devices_per_host=self.devices_per_host,
        )


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """What the collectives of a step carry; dims count one pooled fp32 vector per sample of the whole batch.

    Attributes:
        all_to_all_dims: `[D]` of table- and column-wise shards: each device sends its own to all.
        row_wise_dims: of row-wise tables: every device has partial sums of all of them, which a reduce-scatter adds up; its
            way back is an all-gather.
        host_dims: `[H]` of table-row-wise and grid shards of each host: its devices have partial sums, which a
            reduce-scatter within the host adds up, and an all-to-all between devices of equal number on all hosts delivers.
        all_reduce_bytes: of the gradients of data-parallel tables, in the backward pass.
    """

    all_to_all_dims: Int[Tensor, " D"]
    row_wise_dims: int
    host_dims: Int[Tensor, " H"]
    all_reduce_bytes: int
    devices_per_host: int


def placed_shards(task: PlacementTask, placement: ShardedPlacement) -> PlacedShards:
    """The shards of `placement`, table by table, by columns and then by devices.

    Raises:
        ValueError: the placement is for other tables or another number of devices.
    """
    if len(placement.tables) != len(task.tables) or placement.num_devices != task.num_devices:
        raise ValueError(
            f"the placement shards {len(placement.tables)} tables over {placement.num_devices} devices, but {task.name} has "
            f"{len(task.tables)} tables and {task.num_devices} devices; use a placement made for this task"
        )
    entries: list[ShardEntry] = []
    for t, sharding in enumerate(placement.tables):
        entries += shard_entries(task, t, sharding, placement.devices_per_host)
    return shards_of(task, entries, placement.devices_per_host)


class ShardEntry(NamedTuple):
    """One shard: its table, device and way to shard, its rows and columns, and the share of them that is cached, if any."""

    table: int
    device: int
    sharding_type: ShardingType
    row_start: int
    row_end: int
    column_start: int
    column_end: int
    cached_share: float | None = None


def shard_entries(task: PlacementTask, table: int, sharding: TableSharding, devices_per_host: int) -> list[ShardEntry]:
    """The shards of one table, by columns and then by devices.

    Raises:
        ValueError: the table has other columns.
    """
    rows, kind = int(task.tables.rows[table]), sharding.sharding_type
    if sharding.dim != int(task.tables.dim[table]):
        raise ValueError(
            f"the placement holds {sharding.dim} columns of {task.tables.names[table]!r}, which has "
            f"{int(task.tables.dim[table])}; use a placement made for this task"
        )
    entries = []
    for i, (start, end) in enumerate(sharding.columns):
        if kind in ON_ONE_DEVICE:
            blocks = [(sharding.where[i], 0, rows)]
        elif kind == "data_parallel":
            blocks = [(device, 0, rows) for device in range(task.num_devices)]
        else:
            spread = kind in ON_EVERY_DEVICE
            first, count = (0, task.num_devices) if spread else (sharding.where[i] * devices_per_host, devices_per_host)
            blocks = [(first + part, a, b) for part, (a, b) in enumerate(row_blocks(rows, count)) if a < b]
        entries += [ShardEntry(table, device, kind, a, b, start, end, sharding.cached_share) for device, a, b in blocks]
    return entries


def shards_of(task: PlacementTask, entries: Sequence[ShardEntry], devices_per_host: int) -> PlacedShards:
    """These shards; they need not make up a placement, so that a few can stand for many that are alike."""
    numbers = [(e[0], e[1], SHARDING_TYPES.index(e[2]), *e[3:7]) for e in entries]
    columns = torch.tensor(numbers, dtype=torch.int64).reshape(-1, 7).T  # [7, S]
    table, device, kinds = columns[0], columns[1], columns[2]
    rows, ranges = columns[3:5].T, columns[5:7].T
    is_copy = kinds == SHARDING_TYPES.index("data_parallel")
    batch_share = torch.where(is_copy, 1.0 / task.num_devices, 1.0)
    cached_share = torch.tensor([1.0 if e.cached_share is None else e.cached_share for e in entries])
    in_host = torch.tensor([e.cached_share is not None for e in entries], dtype=torch.bool)
    tables = _as_tables(task, table, rows, ranges, device, is_copy, batch_share)
    per_weight = task.weight_bytes[table] + task.element_state_bytes
    stored = tables.rows * (tables.dim * per_weight + task.row_bytes[table])
    kept = (tables.rows * cached_share).ceil().long()
    per_row = tables.dim * task.weight_bytes[table] + CACHED_ROW_BYTES
    in_cache = kept * per_row + tables.rows * UNCACHED_ROW_BYTES
    gradient = torch.where(is_copy, tables.rows * tables.dim * GRADIENT_BYTES, 0)
    return PlacedShards(
        tables=tables,
        table=table,
        device=device,
        sharding_type=kinds,
        rows=rows,
        columns=ranges,
        batch_share=batch_share,
        cached_share=cached_share,
        device_bytes=torch.where(in_host, in_cache, stored + gradient),
        host_bytes=torch.where(in_host, stored, 0),
        num_devices=task.num_devices,
        devices_per_host=devices_per_host,
    )


def _as_tables(
    task: PlacementTask,
    table: Int[Tensor, " S"],
    rows: Int[Tensor, "S 2"],
    ranges: Int[Tensor, "S 2"],
    device: Int[Tensor, " S"],
    is_copy: Tensor,
    batch_share: Float[Tensor, " S"],
) -> Tables:
    """Each shard as a table: its rows, its columns and its share of the lookups."""
    whole = task.tables.columns(table)
    row_share = (rows[:, 1] - rows[:, 0]) / whole["rows"]  # [S]
    share = row_share.double() * batch_share.double()
    held = rows[:, 1] - rows[:, 0]
    lookups = (whole["lookups"] * share).round().long()
    unique = torch.minimum((whole["unique_rows"] * row_share.double()).round().long(), torch.minimum(held, lookups))
    names, dims, all_rows = [], task.tables.dim.tolist(), task.tables.rows.tolist()
    for t, (a, b), (start, end), d, copied in zip(
        table.tolist(), rows.tolist(), ranges.tolist(), device.tolist(), is_copy.tolist(), strict=True
    ):
        name = task.tables.names[t]
        if (start, end) != (0, dims[t]):
            name = shard_name(name, start, end)
        if copied:
            name = f"{name} copy {d}"
        elif (a, b) != (0, all_rows[t]):
            name = f"{name} rows {a}:{b}"
        names.append(name)
    if len(set(names)) < len(names):
        names = [f"{name} {i}" for i, name in enumerate(names)]
    changed = {
        "rows": held,
        "dim": ranges[:, 1] - ranges[:, 0],
        "pooling_factor": (whole["pooling_factor"] * row_share).to(whole["pooling_factor"].dtype),
        "lookups": lookups,
        "unique_rows": unique,
    }
    return Tables(tuple(names), **(whole | changed))
