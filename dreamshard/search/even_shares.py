"""Which tables to spread, judged as if the others were balanced perfectly.

The first data-parallel table costs the latency of an all-reduce, and the next ones little more; so it goes with each kind of
collective. Single steps would never begin, so tables are spread in order of what spreading each alone would cost, and the
number of them that costs least is taken. An actual placement decides in the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.search.device_shards import DeviceShards
from dreamshard.search.shard_menu import DATA_PARALLEL, GRID, ROW_WISE, SPREADS, TABLE_ROW_WISE, ShardMenu
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.search.sharding_mix import ON_DEVICES, ShardingMix

_ORDER = (DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, GRID, DATA_PARALLEL)
_MOST_EXPENSIVE = (1, 2, 4)  # tables that are spread by rows to begin with
_FULL = 0.98  # of all memory: placements of whole tables never fill devices evenly


@dataclass(frozen=True)
class EvenShares:
    """Costs of mixes as if tables on single devices were balanced perfectly.

    Attributes:
        menu: of the task.
        whole: `[T, L]` latents of each table on devices, summed over its column shards.
        whole_bytes: `[T]` of them.
        costliest: `[T, L]` of the costliest column shard of each, which no balance makes cheaper.
        alone_ms: `[T]` compute of it alone.
        widest: `[T, L]` of the widest column shard of each.
        widths: `[T]` of it.
    """

    menu: ShardMenu
    whole: Array
    whole_bytes: Indices
    costliest: Array
    alone_ms: Array
    widest: Array
    widths: Array

    @classmethod
    def of(cls, menu: ShardMenu, shards: DeviceShards) -> "EvenShares":
        """By the column shards that tables would have on devices."""
        count = len(menu.task.tables)
        whole, size = np.zeros((count, shards.latents.shape[1]), np.float32), np.zeros(count, np.int64)
        np.add.at(whole, shards.table, shards.latents)
        np.add.at(size, shards.table, shards.device_bytes)
        widths = menu.costs.evaluator().table_width(shards.latents)
        costliest, widest = _largest_of_each(shards.table, shards.alone_ms), _largest_of_each(shards.table, widths)
        latents = shards.latents
        return cls(menu, whole, size, latents[costliest], shards.alone_ms[costliest], latents[widest], widths[widest])

    def mixes(self, forced: ShardingMix, *, in_one_way: bool) -> list[tuple[float, ShardingMix]]:
        """Mixes and what they cost by this measure.

        Args:
            forced: the tables that are spread in it stay so; the others are on devices to begin with.
            in_one_way: whether to begin also with all of these spread in the same way, for each way.
        """
        return self._swept_from([forced, *(self._all_in_one_way(forced) if in_one_way else ())], forced)

    def mixes_by_rows(self, forced: ShardingMix) -> list[tuple[float, ShardingMix]]:
        """Mixes that begin with the costliest tables spread by rows, and what they cost by this measure.

        A hot table's rows may pay only together with copies of small tables, which sweeps one way at a time never begin.
        """
        return self._swept_from(list(self._most_expensive_by_rows(forced)), forced)

    def _swept_from(self, starts: Sequence[ShardingMix], forced: ShardingMix) -> list[tuple[float, ShardingMix]]:
        found = []
        free = forced.kind == ON_DEVICES
        for start in starts:
            mix, cost_ms, unchanged = start, np.inf, 0
            for kind in _ORDER:
                if unchanged == len(_ORDER) - 1:
                    break
                changed = self._swept(mix, kind, free, cost_ms)
                unchanged = 0 if changed else unchanged + 1
                if changed is not None:
                    cost_ms, mix = changed
            if np.isfinite(cost_ms):
                found.append((cost_ms, mix))
        return found

    def _most_expensive_by_rows(self, mix: ShardingMix) -> Iterator[ShardingMix]:
        """The mix with one, two, four of its costliest tables spread by rows."""
        able = np.flatnonzero((mix.kind == ON_DEVICES) & self.menu.allowed[:, ROW_WISE])
        costliest = able[np.argsort(-self.alone_ms[able], kind="stable")]
        for count in _MOST_EXPENSIVE:
            if count <= len(costliest):
                yield mix.with_tables(costliest[:count], ROW_WISE)

    def _all_in_one_way(self, mix: ShardingMix) -> Iterator[ShardingMix]:
        """The mix with all other tables spread in the same way that can be."""
        for kind in (ROW_WISE, TABLE_ROW_WISE, GRID):
            tables = np.flatnonzero((mix.kind == ON_DEVICES) & self.menu.allowed[:, kind])
            if len(tables):
                yield mix.with_tables(tables, kind)

    def _swept(
        self, mix: ShardingMix, kind: int, free: NDArray[np.bool_], least_ms: float
    ) -> tuple[float, ShardingMix] | None:
        """With the number of tables changed to this kind that costs least, and the cost; None where that is no less.

        Args:
            mix: to change.
            kind: a position in `SPREADS`.
            free: `[T]` tables that may change.
            least_ms: what the mix costs, if that is known.
        """
        menu = self.menu
        tables = np.flatnonzero(free & (mix.kind != kind) & menu.allowed[:, kind])
        if not len(tables):
            return None
        everything = np.arange(len(mix.kind))
        latents, size, carried = self._shares(everything, mix.kind)
        after, after_size, after_carried = self._shares(tables, np.full(len(tables), kind))
        on_devices = mix.kind == ON_DEVICES
        load = CollectiveLoad(*(values.sum(axis=0, keepdims=True) for values in carried.parts()))
        orders = self._orders(tables, kind)
        spread = latents[~on_devices].sum(axis=0)
        sums, spreads, loads, lefts, sizes = [], [], [], [], []
        for order in orders:
            chosen = tables[order]
            gone = latents[chosen] * ~on_devices[chosen, None]
            sums.append(latents.sum(axis=0) + _from_none(after[order] - latents[chosen]))
            spreads.append(spread + _from_none(after[order] - gone))
            loads.append(
                [
                    whole + _from_none(new[order] - old[chosen])
                    for whole, new, old in zip(load.parts(), after_carried.parts(), carried.parts(), strict=True)
                ]
            )
            sizes.append(size.sum() + _from_none(after_size[order] - size[chosen]))
            lefts.append([_largest_left(each, on_devices, chosen) for each in (self.alone_ms, self.widths)])
        others_ms = menu.costs.other_ms(
            CollectiveLoad(*(np.concatenate(parts) for parts in zip(*loads, strict=True)))
        ).max(axis=1)
        everywhere = np.concatenate(spreads)
        floors = [
            everywhere
            + of_table[np.concatenate([left[i] for left in lefts])]
            * (np.concatenate([left[i] for left in lefts]) >= 0)[:, None]
            for i, of_table in enumerate((self.costliest, self.widest))
        ]
        costs = menu.costs.even_ms(np.concatenate([*sums, *floors])).reshape(3, -1).max(axis=0) + others_ms
        costs = np.where(np.concatenate(sizes) > _FULL * float(menu.task.capacity_bytes.double().mean()), np.inf, costs)
        best = int(costs.argmin())
        least_ms = min(least_ms, float(costs[0]))
        order, number = orders[best // (len(tables) + 1)], best % (len(tables) + 1)
        if number == 0 or not costs[best] < least_ms:
            return None
        return float(costs[best]), mix.with_tables(tables[order[:number]], kind)

    def _orders(self, tables: Indices, kind: int) -> list[Indices]:
        """Orders in which to spread tables: the costliest first, or by what is paid for a data-parallel one."""
        costliest = np.argsort(-self.alone_ms[tables], kind="stable")
        if kind != DATA_PARALLEL:
            return [costliest]
        size = self.menu.device_bytes[tables, kind]
        return [np.argsort(size, kind="stable"), np.argsort(size / self.alone_ms[tables], kind="stable")]

    def _shares(self, tables: Indices, kind: Indices) -> tuple[Figures, Figures, CollectiveLoad]:
        """What each table adds to every device on average, in latents and bytes, and what its collectives carry."""
        menu, count = self.menu, self.menu.task.num_devices
        latents = self.whole[tables].astype(np.float64) / count
        size = self.whole_bytes[tables] / count
        load = CollectiveLoad.none(len(tables), menu.num_hosts)
        for k in range(len(SPREADS)):
            mine = np.flatnonzero(kind == k)
            share: Figures = np.ones(len(mine))
            if k in (TABLE_ROW_WISE, GRID):
                share = (menu.ranges[tables[mine]] if k == GRID else share) * (menu.devices_per_host / count)
            latents[mine] = share[:, None] * menu.latents[tables[mine], k]
            size[mine] = share * menu.device_bytes[tables[mine], k]
            carried = menu.carries(tables[mine], k)
            load.row_dims[mine], load.all_reduce_bytes[mine] = carried.row_dims, carried.all_reduce_bytes
            load.host_dims[mine] = carried.host_dims.mean(axis=1, keepdims=True)
        return latents, size, load


def _largest_of_each(table: Indices, figure: Array) -> Indices:
    """`[T]` the shard of each table with the largest figure."""
    order = np.argsort(figure, kind="stable")
    largest = np.zeros(int(table.max()) + 1, np.int64)
    largest[table[order]] = order  # the last one stays
    return largest


def _largest_left(figure: Array, on_devices: NDArray[np.bool_], tables: Indices) -> Indices:
    """`[N + 1]` the table on devices with the largest figure once the first 0, 1, 2, ... of `tables` are not; -1 for none."""
    figure = np.where(on_devices, figure, -1.0)
    rest = np.setdiff1d(np.flatnonzero(on_devices), tables)
    chosen = [int(rest[figure[rest].argmax()]) if len(rest) else -1]
    for t in tables[::-1].tolist():
        better = figure[t] >= 0 and (chosen[-1] < 0 or figure[t] > figure[chosen[-1]])
        chosen.append(t if better else chosen[-1])
    return np.array(chosen[::-1])


def _from_none(values: Figures | Indices) -> Figures:
    """`[N + 1]` sums of the first 0, 1, 2, ... values."""
    return np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0, dtype=np.float64)])
