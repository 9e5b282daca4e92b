"""Which tables are spread over several devices, and how: one state of the search among every way to shard."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.limits import PlacementLimits
from dreamshard.search.background import Background
from dreamshard.search.shard_menu import DATA_PARALLEL, GRID, ROW_WISE, SPREADS, ShardMenu
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.sharding import TableSharding, even_columns

ON_DEVICES = -1
"""The kind of tables that are whole or split by columns."""


@dataclass(frozen=True)
class ShardingMix:
    """The tables that are spread.

    Attributes:
        menu: of the task.
        kind: `[T]` positions in `SPREADS`; `ON_DEVICES` for tables that are not spread.
        hosts: the host of each range of columns of each table that is on hosts.
    """

    menu: ShardMenu
    kind: Indices
    hosts: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def nothing_spread(cls, menu: ShardMenu) -> "ShardingMix":
        """All tables whole or by columns."""
        return cls(menu, np.full(len(menu.task.tables), ON_DEVICES))

    @property
    def on_devices(self) -> Indices:
        """Numbers of the tables that are not spread."""
        return np.flatnonzero(self.kind == ON_DEVICES)

    def with_table(self, table: int, kind: int, hosts: tuple[int, ...] = ()) -> "ShardingMix":
        """A copy in which one table is spread otherwise, or not at all."""
        changed = self.kind.copy()
        changed[table] = kind
        others = {t: places for t, places in self.hosts.items() if t != table}
        return replace(self, kind=changed, hosts=others | ({table: hosts} if hosts else {}))

    def with_tables(self, tables: Indices, kind: int) -> "ShardingMix":
        """A copy in which these tables are spread, those on hosts each on the hosts with the fewest dims so far."""
        if kind in (ROW_WISE, DATA_PARALLEL):
            changed = self.kind.copy()
            changed[tables] = kind
            return replace(
                self, kind=changed, hosts={t: h for t, h in self.hosts.items() if t not in set(tables.tolist())}
            )
        dims, left = self.load().host_dims[0], self._left()
        result = replace(self, kind=self.kind.copy(), hosts=dict(self.hosts))  # filled below, before anyone else has it
        for t in tables.tolist():
            hosts, able = [], self.menu.hosts[t]
            if (barred := result.barred()) is not None:
                able = able & ~barred[t].reshape(len(able), -1).any(axis=1)
            able = able if able.any() else self.menu.hosts[t]  # the conflict is found out when the mix is placed
            for width in self.menu.range_dims(t, kind):
                roomy = able & (left >= self.menu.device_bytes[t, kind])
                hosts.append(int(np.where(roomy if roomy.any() else able, dims, np.inf).argmin()))
                dims[hosts[-1]] += width
                left[hosts[-1]] -= self.menu.device_bytes[t, kind]
            result.kind[t], result.hosts[t] = kind, tuple(hosts)
        return result

    def barred(self) -> NDArray[np.bool_] | None:
        """`[T, D]` devices of spread tables from which each table is to be apart; None where none are to be apart."""
        if not self.menu.apart:
            return None
        held = self._held()
        result = np.zeros_like(held)
        for group in self.menu.apart:
            result[group] |= held[group].sum(axis=0) - held[group] > 0
        return result

    @property
    def is_apart(self) -> bool:
        """Whether no two of the spread tables share a device that are to be apart."""
        barred = self.barred()
        return barred is None or not (barred & self._held()).any()

    def narrowed(self, limits: PlacementLimits, table: Indices) -> PlacementLimits:
        """Limits of shards of these tables `[S]`, without the devices of spread tables from which they are to be apart."""
        barred = self.barred()
        if barred is None:
            return limits
        allowed = limits.allowed.copy()
        np.logical_and.at(allowed, limits.item, ~barred[table])
        return replace(limits, allowed=allowed)

    def _held(self) -> NDArray[np.bool_]:
        """`[T, D]` devices of each spread table; none of a data-parallel one, which has no place."""
        per_host = self.menu.devices_per_host
        held = np.zeros((len(self.kind), self.menu.task.num_devices), np.bool_)
        held[self.kind == ROW_WISE] = True
        for t, hosts in self.hosts.items():
            for host in hosts:
                held[t, host * per_host : (host + 1) * per_host] = True
        return held

    def _left(self) -> Figures:
        """`[H]` bytes that the spread tables leave free on the fullest device of each host."""
        menu = self.menu
        spread = np.flatnonzero((self.kind == ROW_WISE) | (self.kind == DATA_PARALLEL))
        first = np.arange(0, menu.task.num_devices, menu.devices_per_host)
        room = np.minimum.reduceat(menu.task.capacity_bytes.numpy(), first)
        left: Figures = (room - menu.device_bytes[spread, self.kind[spread]].sum()).astype(np.float64)
        for t, hosts in self.hosts.items():
            for host in hosts:
                left[host] -= menu.device_bytes[t, self.kind[t]]
        return left

    def load(self) -> CollectiveLoad:
        """What collectives carry, for this one placement."""
        total = CollectiveLoad.none(1, self.menu.num_hosts)
        for kind in (ROW_WISE, DATA_PARALLEL):
            each = self.menu.carries(np.flatnonzero(self.kind == kind), kind)
            total.row_dims[0] += each.row_dims.sum()
            total.all_reduce_bytes[0] += each.all_reduce_bytes.sum()
        for t, hosts in self.hosts.items():
            for host, width in zip(hosts, self.menu.range_dims(t, int(self.kind[t])), strict=True):
                total.host_dims[0, host] += width
        return total

    def background(self) -> Background:
        """The shards of spread tables on every device."""
        menu, num_devices, per_host = self.menu, self.menu.task.num_devices, self.menu.devices_per_host
        spread = np.flatnonzero((self.kind == ROW_WISE) | (self.kind == DATA_PARALLEL))
        everywhere = menu.latents[spread, self.kind[spread]].sum(axis=0, dtype=np.float64)
        sums: Array = np.repeat(everywhere[None].astype(np.float32), num_devices, axis=0)
        used = np.full(num_devices, menu.device_bytes[spread, self.kind[spread]].sum(), np.int64)
        for t, hosts in self.hosts.items():
            for host in hosts:
                devices = slice(host * per_host, (host + 1) * per_host)
                sums[devices] += menu.latents[t, self.kind[t]]
                used[devices] += menu.device_bytes[t, self.kind[t]]
        return Background(sums, menu.costs.other_ms(self.load())[0].astype(np.float32), used)

    def sharding(self, table: int) -> TableSharding:
        """How one of the spread tables is sharded."""
        kind, dim = int(self.kind[table]), int(self.menu.task.tables.dim[table])
        return TableSharding(
            sharding_type=SPREADS[kind],
            columns=even_columns(dim, int(self.menu.ranges[table])) if kind == GRID else ((0, dim),),
            where=self.hosts.get(table, ()),
            cached_share=self.menu.shares[table] if kind != DATA_PARALLEL else None,
        )
