"""Which tables to spread, judged as if the others were balanced perfectly.

The first data-parallel table costs the latency of an all-reduce, and the next ones little more; so it goes with each kind of
collective. Single steps would never begin, so tables are spread in order of what spreading each alone would cost, and the
number of them that costs least is taken. An actual placement decides in the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.search.device_shards import DeviceShards
from dreamshard.search.shard_menu import DATA_PARALLEL, GRID, ROW_WISE, TABLE_ROW_WISE, ShardMenu
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.search.sharding_mix import ON_DEVICES, ShardingMix

_ORDER = (DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, GRID, DATA_PARALLEL)
_FULL = 0.98  # of all memory: placements of whole tables never fill devices evenly


@dataclass(frozen=True)
class EvenShares:
    """Costs of mixes as if tables on single devices were balanced perfectly.

    Attributes:
        menu: of the task.
        whole: `[T, L]` latents of each table on devices, summed over its column shards.
        whole_bytes: `[T]` of them.
        dearest: `[T, L]` of the dearest column shard of each, which no balance makes cheaper.
        alone_ms: `[T]` compute of it alone.
    """

    menu: ShardMenu
    whole: Array
    whole_bytes: Indices
    dearest: Array
    alone_ms: Array

    @classmethod
    def of(cls, menu: ShardMenu, shards: DeviceShards) -> "EvenShares":
        """By the column shards that tables would have on devices."""
        count = len(menu.task.tables)
        whole, size = np.zeros((count, shards.latents.shape[1]), np.float32), np.zeros(count, np.int64)
        np.add.at(whole, shards.table, shards.latents)
        np.add.at(size, shards.table, shards.device_bytes)
        by_cost = np.argsort(shards.alone_ms, kind="stable")
        dearest = np.zeros(count, np.int64)
        dearest[shards.table[by_cost]] = by_cost  # the last one stays
        return cls(menu, whole, size, shards.latents[dearest], shards.alone_ms[dearest])

    def mixes(self, forced: ShardingMix) -> Iterator[tuple[float, ShardingMix]]:
        """Mixes that are better and better by this measure, and what they cost by it.

        The tables that are spread in `forced` stay so.
        """
        mix = forced
        for kind in _ORDER:
            if (changed := self._swept(mix, kind)) is not None:
                mix = changed[1]
                yield changed

    def _swept(self, mix: ShardingMix, kind: int) -> tuple[float, ShardingMix] | None:
        """With the number of tables spread in this way that costs least, and the cost; None where none should be."""
        menu, num_devices = self.menu, self.menu.task.num_devices
        tables = np.flatnonzero((mix.kind == ON_DEVICES) & menu.allowed[:, kind])
        if not len(tables):
            return None
        spread, load, used = self._spread(mix)
        kept = mix.on_devices
        share = self._share(kind, tables)[:, None]
        added = share * menu.latents[tables, kind]  # [N, L] of every device, on average
        removed = self.whole[tables] / num_devices
        carried = menu.carries(tables, kind)
        carried.host_dims[:] = carried.host_dims.mean(axis=1, keepdims=True)
        base = spread + self.whole[kept].sum(axis=0) / num_devices
        alone = menu.costs.even_ms(base + added - removed) + menu.costs.other_ms(_plus(load, carried)).max(axis=1)
        best_ms, best = np.inf, tables[:0]
        for order in (np.argsort(alone, kind="stable"), np.argsort(-self.alone_ms[tables], kind="stable")):
            carries = CollectiveLoad(
                *(
                    _from_none(values[order])
                    for values in (carried.row_dims, carried.all_reduce_bytes, carried.host_dims)
                )
            )
            spreads = spread + _from_none(added[order])  # [N + 1, L]
            others_ms = menu.costs.other_ms(_plus(load, carries)).max(axis=1)
            even_ms = menu.costs.even_ms(spreads + base - spread - _from_none(removed[order])) + others_ms
            dearest = self._dearest_left(kept, tables[order])  # [N + 1]
            total_ms = np.maximum(even_ms, menu.costs.even_ms(spreads + self.dearest[dearest]) + others_ms)
            bytes_spread = used + _from_none((share[:, 0] * menu.device_bytes[tables, kind])[order])
            bytes_left = (self.whole_bytes[kept].sum() - _from_none(self.whole_bytes[tables][order])) / num_devices
            room = menu.task.capacity_bytes.double()
            full = (bytes_spread + bytes_left > _FULL * float(room.mean())) | (bytes_spread > float(room.min()))
            total_ms = np.where(full, np.inf, total_ms)
            number = int(total_ms.argmin())
            if number and total_ms[number] < min(best_ms, total_ms[0]):
                best_ms, best = float(total_ms[number]), tables[order[:number]]
        return (best_ms, mix.with_tables(best, kind)) if len(best) else None

    def _dearest_left(self, kept: Indices, tables: Indices) -> Indices:
        """`[N + 1]` the table with the dearest shard among those left on devices once the first 0, 1, 2, ... are spread."""
        left = np.setdiff1d(kept, tables)
        rest = int(left[self.alone_ms[left].argmax()]) if len(left) else int(tables[self.alone_ms[tables].argmin()])
        chosen = [rest]
        for t in tables[::-1].tolist():
            chosen.append(t if self.alone_ms[t] > self.alone_ms[chosen[-1]] else chosen[-1])
        return np.array(chosen[::-1])

    def _spread(self, mix: ShardingMix) -> tuple[Figures, CollectiveLoad, float]:
        """Latents and bytes that spread tables leave on every device on average, and what their collectives carry."""
        latents, size = np.zeros(self.whole.shape[1], np.float64), 0.0
        for kind in (ROW_WISE, DATA_PARALLEL, TABLE_ROW_WISE, GRID):
            tables = np.flatnonzero(mix.kind == kind)
            share = self._share(kind, tables)
            latents += (share[:, None] * self.menu.latents[tables, kind]).sum(axis=0)
            size += float((share * self.menu.device_bytes[tables, kind]).sum())
        return latents, mix.load(), size

    def _share(self, kind: int, tables: Indices) -> Figures:
        """`[N]` shards of each table over the number of devices."""
        if kind in (ROW_WISE, DATA_PARALLEL):
            return np.ones(len(tables))
        ranges = self.menu.ranges[tables] if kind == GRID else np.ones(len(tables))
        share: Figures = ranges * self.menu.devices_per_host / self.menu.task.num_devices
        return share


def _from_none(values: Figures | Indices) -> Figures:
    """`[N + 1]` sums of the first 0, 1, 2, ... values."""
    return np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0, dtype=np.float64)])


def _plus(load: CollectiveLoad, more: CollectiveLoad) -> CollectiveLoad:
    """One load beside each of several."""
    return load + more
