"""Shards of tables that are whole or split by columns, each on one device, as a search among every way to shard has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.limits import PlacementLimits
from dreamshard.placed_shards import ShardEntry, shards_of
from dreamshard.placement import Placement, column_shards
from dreamshard.search.background import Background
from dreamshard.search.sharding_costs import ShardingCosts
from dreamshard.sharding import ShardingType, TableSharding
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

Columns = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DeviceShards:
    """`S` shards, each on a device of its own choice.

    Attributes:
        task: whose tables they are of.
        table: `[S]`.
        columns: `[S, 2]`.
        latents: `[S, L]`.
        device_bytes: `[S]`.
        alone_ms: `[S]` compute of each alone.
    """

    task: PlacementTask
    table: Indices
    columns: Indices
    latents: Array
    device_bytes: Indices
    alone_ms: Array

    @classmethod
    def of(
        cls, task: PlacementTask, costs: ShardingCosts, columns: Sequence[Columns], shares: Sequence[float | None]
    ) -> "DeviceShards":
        """Shards of all tables, by their ranges of columns and the cached share of each table."""
        rows = task.tables.rows.tolist()
        entries = [
            ShardEntry(t, 0, "table_wise" if len(ranges) == 1 else "column_wise", 0, rows[t], start, end, shares[t])
            for t, ranges in enumerate(columns)
            for start, end in ranges
        ]
        shards = shards_of(task, entries, task.num_devices)
        latents = costs.shard_latents(shards).float().numpy()
        forward, backward, _ = costs.evaluator().compute(latents)
        return cls(
            task, shards.table.numpy(), shards.columns.numpy(), latents, shards.device_bytes.numpy(), forward + backward
        )

    def of_tables(self, chosen: Indices) -> Indices:
        """Numbers of the shards of these tables."""
        return np.flatnonzero(np.isin(self.table, chosen))

    def subset(self, shards: Indices) -> "DeviceShards":
        """Some of them."""
        return replace(
            self,
            table=self.table[shards],
            columns=self.columns[shards],
            latents=self.latents[shards],
            device_bytes=self.device_bytes[shards],
            alone_ms=self.alone_ms[shards],
        )

    def may_hold(self, table: int) -> bool:
        """Whether a table may be sharded as its shards are here, on single devices."""
        return ("table_wise" if (self.table == table).sum() == 1 else "column_wise") in self._types_for(table)

    def _types_for(self, table: int) -> tuple[ShardingType, ...]:
        return self.task.constraints.sharding_types_for(parent_name(self.task.tables.names[table]))

    def limits(self, background: Background) -> PlacementLimits:
        """Where they may be beside what devices hold already."""
        limits = PlacementLimits.of(self.task, self.table, self.device_bytes)
        return replace(limits, capacity_bytes=limits.capacity_bytes - background.used_bytes)

    def greedy(self, limits: PlacementLimits) -> Indices | None:
        """A placement by descending cost, each on the device of the least; or by size, where that finds no room."""
        items = torch.from_numpy(limits.item_bytes).double()
        load = limits.summed(torch.from_numpy(self.alone_ms)).double()
        for figure in (load, items):
            order = torch.argsort(figure, descending=True, stable=True)
            device = limits.filled(order, lambda loads, _i: loads, figure)
            if device is not None:
                return limits.per_table(device).numpy()
        return None

    def shardings(self, device: Indices, shares: Sequence[float | None]) -> Mapping[int, TableSharding]:
        """How each of the tables is sharded; neighbouring ranges on one device are joined where the table may be whole."""
        result = {}
        for t in np.unique(self.table).tolist():
            mine = np.flatnonzero(self.table == t)
            mine = mine[self.columns[mine, 0].argsort()]
            joined: list[tuple[int, int, int]] = []
            for (start, end), place in zip(self.columns[mine].tolist(), device[mine].tolist(), strict=True):
                if joined and joined[-1][2] == place:
                    joined[-1] = (joined[-1][0], end, place)
                else:
                    joined.append((start, end, place))
            if len(joined) == 1 and "table_wise" not in self._types_for(t):
                joined = [(start, end, joined[0][2]) for start, end in self.columns[mine].tolist()]
            whole = len(joined) == 1
            result[t] = TableSharding(
                sharding_type="table_wise" if whole else "column_wise",
                columns=tuple((start, end) for start, end, _ in joined),
                where=tuple(place for _, _, place in joined),
                cached_share=shares[t],
            )
        return result


def columns_and_devices(task: PlacementTask, placement: Placement) -> tuple[tuple[Columns, ...], Indices]:
    """The ranges of columns of each table, and the device of each range in the order of tables and columns."""
    by_table: list[list[tuple[int, int, int]]] = [[] for _ in range(len(task.tables))]
    for shard, device in zip(column_shards(task.tables, placement), placement.device.tolist(), strict=True):
        by_table[shard.table].append((shard.start, shard.end, device))
    ordered = [sorted(shards) for shards in by_table]
    devices = np.array([device for shards in ordered for _, _, device in shards])
    return tuple(tuple((start, end) for start, end, _ in shards) for shards in ordered), devices
