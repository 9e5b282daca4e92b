"""Search for the best placement among every way to shard, by any cost model.

1. Tables that are too large for the devices together are cached from host memory (`cached_shares.py`).
2. The best placement of whole tables and columns is found first, where there is one.
3. Tables are spread over all devices, or those of a host, as would pay if the others were balanced perfectly
   (`even_shares.py`). Each such mix is settled by local search, with the spread tables as its background.
4. From the best one, tables are spread or taken back one by one (`kind_climber.py`), and local search takes the rest of the
   budget.

A spread must lower the predicted cost by more than its uncertainty. The result is never predicted to be worse than the best
placement of whole tables and columns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch

from dreamshard.baselines import no_room
from dreamshard.cost_model.evaluator import Indices
from dreamshard.legality import violation
from dreamshard.placed_shards import ShardEntry, shards_of
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.search.budget import Budget
from dreamshard.search.cached_shares import cached_shares, with_fuller_caches
from dreamshard.search.column_splits import column_limits
from dreamshard.search.device_shards import Columns, DeviceShards, columns_and_devices
from dreamshard.search.even_shares import EvenShares
from dreamshard.search.forced_mixes import drawn_mixes, ever_more, forced_mix
from dreamshard.search.kind_climber import KindClimber, Placed
from dreamshard.search.local_search import LocalSearch
from dreamshard.search.shard_menu import ShardMenu
from dreamshard.search.sharding_costs import ShardingCosts
from dreamshard.search.sharding_mix import ON_DEVICES, ShardingMix
from dreamshard.sharding import ON_ONE_DEVICE, ShardedPlacement, even_columns
from dreamshard.tables import DIM_MULTIPLE, parent_name
from dreamshard.tasks import PlacementTask

_COLUMNS_SHARE = 0.3  # of the budget, for placements of whole tables and columns
_SETTLED_MIXES = 3
_DRAWN_MIXES = 100  # at random, where no other one finds places for all tables
_PROMISING = 1.15  # of the least estimate: mixes that are estimated to cost more are not settled
_SETTLING_STEPS = 64  # of local search, before mixes are compared
_PERTURBATIONS = 40
_ROOM = 0.9  # of a device that a column shard may take, where tables are split for memory
_FILLED = (0.96, 0.9, 0.8, 0.65, 0.4)  # of all memory, that cached tables leave filled, until everything finds room


class _Estimate(NamedTuple):
    """A mix by its cost if tables on single devices were balanced perfectly."""

    cost_ms: float
    climber: KindClimber
    mix: ShardingMix
    devices: Indices | None  # to begin with


@dataclass(frozen=True)
class ShardedSearch:
    """A search by one prediction of costs.

    Attributes:
        costs: of the task's shards.
        devices_per_host: devices that share a host.
        columns: places whole tables and columns.
        gain: of the predicted cost: a smaller gain is within the error of predicting spread tables.
    """

    costs: ShardingCosts
    devices_per_host: int
    columns: Callable[[PlacementTask, Budget], Placement]
    gain: float

    @torch.no_grad()
    def place(self, task: PlacementTask, budget: Budget) -> ShardedPlacement:
        """The best placement found; what must be done for one at all is done whatever the budget.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        plain = self._on_devices(task, budget)
        best = None if plain is None else ShardedPlacement.of(plain, task.tables, self.devices_per_host)
        if best is not None and not self._may_spread(task):
            return _legal(task, best)
        if best is not None and violation(task, best):
            plain = best = None
        placed_with = cache(partial(self._mixed, task, plain, budget))  # shares often repeat
        tries = _FILLED if best is None else _FILLED[:1]
        fills = (False, True) if best is None and task.constraints.caching else (False,)
        found = []
        for fill in fills:
            shares = (cached_shares(task, self.costs, filled, fill=fill) for filled in tries)
            found.append(next(filter(None, map(placed_with, shares)), None))
        mixed = min((each for each in found if each), key=lambda each: self._cost_ms(task, each), default=best)
        if mixed is None:
            raise no_room(task)
        if best is not None and self._cost_ms(task, mixed) > self._cost_ms(task, best) * (1 - self.gain):
            return best
        return _legal(task, with_fuller_caches(task, self.costs, mixed))

    def _cost_ms(self, task: PlacementTask, placement: ShardedPlacement) -> float:
        return float(self.costs.predict_sharded(task, placement).overall_ms())

    def _on_devices(self, task: PlacementTask, budget: Budget) -> Placement | None:
        """The best placement of whole tables and columns in device memory; None where there is none."""
        part = budget.share(_COLUMNS_SHARE if self._may_spread(task) else 1.0)
        try:
            return self.columns(task, part)
        except NoPlacementError:
            if not self._may_spread(task) and not task.constraints.caching and not task.constraints.cached_share_of:
                raise
            return None
        finally:
            budget.spend(part.spent)

    @staticmethod
    def _may_spread(task: PlacementTask) -> bool:
        """Whether any table may be sharded in another way than whole or by columns."""
        constraints = task.constraints
        types = {constraints.sharding_types_for(name) for name in map(parent_name, task.tables.names)}
        if task.num_devices == 1:
            return any(not set(each) & set(ON_ONE_DEVICE) for each in types)
        return any(set(each) - set(ON_ONE_DEVICE) for each in types)

    def _mixed(
        self, task: PlacementTask, plain: Placement | None, budget: Budget, shares: tuple[float | None, ...]
    ) -> ShardedPlacement | None:
        """The best mix found with these tables cached; None where tables find no room."""
        menu = ShardMenu.of(task, self.costs, self.devices_per_host, shares)
        coarse = self._columns(task, shares, _ROOM)
        first, devices = coarse, None
        if plain is not None:
            first, devices = columns_and_devices(task, plain)
            layouts = [first, *_coarser(first, coarse)]
        else:
            layouts = [coarse, *(self._columns(task, shares, _ROOM / finer) for finer in (2, 4))]

        settled: list[tuple[KindClimber, Placed]] = []
        estimated: tuple[list[_Estimate], list[_Estimate]] = ([], [])  # the second begin with rows
        layouts = list(dict.fromkeys(layouts))
        for columns in layouts:
            shards = DeviceShards.of(task, self.costs, columns, shares)
            climber = KindClimber(menu, shards, budget)
            forced, even = forced_mix(menu, shards), EvenShares.of(menu, shards)
            at = devices if columns == first else None
            if plain is None or at is not None:
                starts = [forced] if plain is not None else ever_more(forced, even.whole_bytes)
                steps = _SETTLING_STEPS if plain is None else 0  # local search has been there
                settled += [
                    (climber, placed) for start in starts if (placed := self._placed(climber, start, at, steps))
                ]
                if not settled:
                    drawn = (self._placed(climber, mix, at, steps) for mix in drawn_mixes(forced, shards, _DRAWN_MIXES))
                    settled += [(climber, placed) for placed in [next(filter(None, drawn), None)] if placed]
            mixes = even.mixes(forced, in_one_way=columns == layouts[-1]), even.mixes_by_rows(forced)
            for kept, each in zip(estimated, mixes, strict=True):
                kept += [_Estimate(cost_ms, climber, mix, at) for cost_ms, mix in each]
        for _, climber, mix, at in _most_promising(estimated):
            if placed := self._placed(climber, mix, at, _SETTLING_STEPS):
                settled.append((climber, placed))
        if not settled:
            return None
        climber, best = min(settled, key=lambda pair: pair[1].cost_ms)
        best = self._searched(climber, climber.improved(best))
        on_devices = best.device >= 0
        shardings = dict(climber.shards.subset(np.flatnonzero(on_devices)).shardings(best.device[on_devices], shares))
        spread = {t: best.mix.sharding(t) for t in np.flatnonzero(best.mix.kind != ON_DEVICES).tolist()}
        return ShardedPlacement(
            tuple((shardings | spread)[t] for t in range(len(task.tables))), task.num_devices, self.devices_per_host
        )

    def _columns(self, task: PlacementTask, shares: tuple[float | None, ...], share: float) -> tuple[Columns, ...]:
        """The fewest ranges of columns of each table that fit this share of the largest device, as far as columns allow."""
        least, most = column_limits(task)
        room = int(task.capacity_bytes.max()) * share
        columns, dims, rows = [], task.tables.dim.tolist(), task.tables.rows.tolist()
        sizes = task.table_bytes.tolist()
        for t, share_of_rows in enumerate(shares):
            if share_of_rows is not None:
                entry = ShardEntry(t, 0, "table_wise", 0, rows[t], 0, dims[t], share_of_rows)
                sizes[t] = int(shards_of(task, [entry], task.num_devices).device_bytes[0])
        for t, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
            needed = -(-size // max(int(room), 1))
            parts = min(max(needed, int(least[t])), int(most[t]), max(dim // DIM_MULTIPLE, 1))
            columns.append(even_columns(dim, parts))
        return tuple(columns)

    def _placed(
        self, climber: KindClimber, mix: ShardingMix, devices: Indices | None, most_steps: int
    ) -> Placed | None:
        """The mix with all other shards placed, the better of two ways, and settled; None where they find no room."""
        shards = climber.shards
        chosen = shards.of_tables(mix.on_devices)
        if not mix.is_apart:
            return None
        device = np.full(len(shards.table), -1)
        if not len(chosen):
            background = mix.background()
            if (background.used_bytes > climber.menu.task.capacity_bytes.numpy()).any():
                return None
            return climber.settled(mix, device, 0)
        subset = shards.subset(chosen)
        limits = mix.narrowed(subset.limits(mix.background()), subset.table)
        if (limits.capacity_bytes < 0).any():
            return None
        starts = [] if devices is None else [limits.repaired_shards(devices[chosen], subset.alone_ms)]
        starts.append(subset.greedy(limits))
        found = []
        for start in starts:
            if start is not None:
                device[chosen] = start
                found.append(climber.settled(mix, device, 0))
        best = min(found, key=lambda placed: placed.cost_ms, default=None)
        return best if best is None or not most_steps else climber.settled(mix, best.device, most_steps)

    def _searched(self, climber: KindClimber, placed: Placed) -> Placed:
        """Local search over the shards on single devices for the rest of the budget."""
        if not (placed.device >= 0).any():
            return placed
        hill, chosen, limits = climber.climber(placed.mix, placed.device)
        task = climber.menu.task
        search = LocalSearch(
            climber.menu.costs.evaluator(),
            torch.from_numpy(hill.latents),
            torch.from_numpy(limits.item_bytes),
            torch.from_numpy(limits.capacity_bytes),
            task.num_devices,
            hill.limits,
            placed.mix.background(),
        )
        device = search.improve(torch.from_numpy(hill.device)[None], _PERTURBATIONS, climber.budget)
        result = placed.device.copy()
        result[chosen] = device.numpy()[limits.item]
        return climber.settled(placed.mix, result, 0)


def _most_promising(estimated: Sequence[Sequence[_Estimate]]) -> list[_Estimate]:
    """Of each kind of start the cheapest mixes, without repetition, if any of all is not much cheaper."""
    chosen: list[_Estimate] = []
    for each in estimated:
        different = {(id(one.climber), one.mix.kind.tobytes(), *one.mix.hosts.items()): one for one in each}
        chosen += sorted(different.values(), key=lambda one: one.cost_ms)[:_SETTLED_MIXES]
    least = min((one.cost_ms for one in chosen), default=0.0)
    return [one for one in chosen if one.cost_ms < least * _PROMISING]


def _legal(task: PlacementTask, placement: ShardedPlacement) -> ShardedPlacement:
    """The placement; NoPlacementError where it violates a constraint."""
    if problem := violation(task, placement):
        raise NoPlacementError(
            f"found no placement of {task.name} that respects its constraints: {problem}; loosen them, or give devices more "
            "memory"
        )
    return placement


def _coarser(fine: Sequence[Columns], coarse: Sequence[Columns]) -> Iterator[tuple[Columns, ...]]:
    """Coarser ranges of columns, but no fewer than memory needs: narrow shards cost more beside wide spread tables."""
    most = max(len(ranges) for ranges in fine)
    while most > 1:
        most = most // 2
        yield tuple(
            ranges if len(ranges) <= max(most, len(needed)) else even_columns(ranges[-1][1], max(most, len(needed)))
            for ranges, needed in zip(fine, coarse, strict=True)
        )
