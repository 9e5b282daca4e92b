"""Improve a mix of ways to shard table by table: spread a table of the critical devices, or take a spread one back.

Each change is costed exactly on the devices that it may make critical, with all other tables where they are; local search
then settles these. Every change must lower the overall cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.limits import PlacementLimits
from dreamshard.search.budget import Budget
from dreamshard.search.device_shards import DeviceShards
from dreamshard.search.hill_climber import HillClimber
from dreamshard.search.shard_menu import DATA_PARALLEL, ROW_WISE, SPREADS, ShardMenu
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.search.sharding_mix import ON_DEVICES, ShardingMix

_WATCHED = 8  # slowest devices on which a change is costed, beside those that it relieves
_HOSTS = 4  # with the fewest dims, that a table may go to
_TAKEN_BACK = 16  # spread tables considered for a single device at a time, the largest
_GAIN = 1e-3  # of the overall cost: smaller gains are not worth a change
_SETTLING_STEPS = 24  # of local search after a change
_MOST_CHANGES = 200
_CHANGE_STEPS = 8  # of local search, which take as long as costing changes once


class Placed(NamedTuple):
    """A mix, and where the shards are that have a device of their own.

    Attributes:
        mix: which tables are spread.
        device: `[S]` of all shards of `DeviceShards`; -1 for those of spread tables.
        cost_ms: predicted.
    """

    mix: ShardingMix
    device: Indices
    cost_ms: float


class _Change(NamedTuple):
    table: int
    kind: int
    hosts: tuple[int, ...]
    device: Indices  # of the table's shards, where it is taken back


@dataclass(frozen=True)
class KindClimber:
    """Changes of single tables.

    Attributes:
        menu: of the task.
        shards: of all tables on single devices.
        budget: what may be spent.
    """

    menu: ShardMenu
    shards: DeviceShards
    budget: Budget

    def improved(self, placed: Placed) -> Placed:
        """Change tables until nothing helps."""
        for _ in range(_MOST_CHANGES):
            if self.budget.is_over() or (better := self._changed(placed)) is None:
                break
            placed = better
        return placed

    def climber(self, mix: ShardingMix, device: Indices) -> tuple[HillClimber, Indices, PlacementLimits]:
        """Local search over the shards that have a device, what it costs, and which shards its items are."""
        chosen = np.flatnonzero(device >= 0)
        shards, background, task = self.shards.subset(chosen), mix.background(), self.menu.task
        limits = mix.narrowed(PlacementLimits.of(task, shards.table, shards.device_bytes), shards.table)
        free = task.constraints.places_freely
        first = np.unique(limits.item, return_index=True)[1]
        latents = shards.latents
        if len(first) < len(chosen):
            latents = np.zeros((len(first), latents.shape[1]), np.float32)
            np.add.at(latents, limits.item, shards.latents)
        climber = HillClimber(
            self.menu.costs.evaluator(),
            latents,
            limits.item_bytes,
            limits.capacity_bytes,
            task.num_devices,
            device[chosen][first],
            None if free else limits,
            background,
        )
        return climber, chosen, limits

    def settled(self, mix: ShardingMix, device: Indices, most_steps: int) -> Placed:
        """The mix after steps of local search that help, whatever is left of the budget."""
        climber, chosen, limits = self.climber(mix, device)
        for _ in range(most_steps):
            self.budget.spend(climber.step_units)
            if not (climber.step(widest=False) or climber.step(widest=True)):
                break
        result = np.full_like(device, -1)
        result[chosen] = climber.device[limits.item]
        return Placed(mix, result, climber.overall_ms)

    def _changed(self, placed: Placed) -> Placed | None:
        """The best change that helps, settled; None where none does."""
        climber, _, _ = self.climber(placed.mix, placed.device)
        self.budget.spend(_CHANGE_STEPS * climber.step_units)
        changes = list(self._changes(placed, climber))
        if not changes:
            return None
        costs = self._costs_ms(placed, climber, changes)
        for best in np.argsort(costs)[:2].tolist():
            if costs[best] >= placed.cost_ms * (1 - _GAIN):
                return None
            change = changes[best]
            device = placed.device.copy()
            device[self.shards.table == change.table] = change.device
            mix = placed.mix.with_table(change.table, change.kind, change.hosts)
            result = self.settled(mix, device, _SETTLING_STEPS)
            if result.cost_ms < placed.cost_ms * (1 - _GAIN):
                return result
        return None

    def _changes(self, placed: Placed, climber: HillClimber) -> Iterator[_Change]:
        """Changes of tables on critical devices, and of spread tables."""
        menu, mix = self.menu, placed.mix
        nowhere = np.array([-1])
        critical = {int(climber.own_ms.argmax()), int(climber.communication.width.argmax())}
        room = climber.capacity - climber.used
        by_dims = mix.load().host_dims[0].argsort()
        on_critical = np.unique(self.shards.table[np.isin(placed.device, list(critical))]).tolist()
        spread = np.flatnonzero(mix.kind != ON_DEVICES)
        largest = spread[np.argsort(-menu.task.table_bytes.numpy()[spread], kind="stable")][:_TAKEN_BACK].tolist()
        for t in on_critical + largest:
            able = np.flatnonzero(menu.hosts[t])
            emptiest = by_dims[menu.hosts[t][by_dims]][:_HOSTS].tolist()
            for kind in np.flatnonzero(menu.allowed[t]).tolist():
                size = menu.device_bytes[t, kind]
                if kind == mix.kind[t] or (kind in (ROW_WISE, DATA_PARALLEL) and int(room.min()) < size):
                    continue
                ranges = len(menu.range_dims(t, kind))
                places = [()] if kind in (ROW_WISE, DATA_PARALLEL) else [_hosts(able, h, ranges) for h in emptiest]
                for hosts in places:
                    if all(int(room[self._devices(h)].min()) >= size * hosts.count(h) for h in hosts):
                        yield _Change(t, kind, hosts, nowhere)
        for t in largest:
            device = self._back(t, climber)
            if device is not None:
                yield _Change(t, ON_DEVICES, (), device)

    def _devices(self, host: int) -> slice:
        return slice(host * self.menu.devices_per_host, (host + 1) * self.menu.devices_per_host)

    def _back(self, table: int, climber: HillClimber) -> Indices | None:
        """The fastest devices with room for the table's shards; None where one finds none, or constraints name places."""
        mine = np.flatnonzero(self.shards.table == table)
        own, left = climber.own_ms.copy(), climber.capacity - climber.used
        if not (self.menu.task.constraints.places_freely and self.shards.may_hold(table)):
            return None
        device = []
        for shard in mine.tolist():
            fits = left >= self.shards.device_bytes[shard]
            if not fits.any():
                return None
            device.append(int(np.where(fits, own, np.inf).argmin()))
            left[device[-1]] -= self.shards.device_bytes[shard]
            own[device[-1]] += self.shards.alone_ms[shard]
        return np.array(device)

    def _costs_ms(self, placed: Placed, climber: HillClimber, changes: list[_Change]) -> Figures:
        """`[C]` overall cost of each change."""
        menu, mix = self.menu, placed.mix
        num_devices, evaluator = menu.task.num_devices, climber.evaluator
        mixes = [mix.with_table(change.table, change.kind, change.hosts) for change in changes]
        loads = [each.load() for each in mixes]
        other_ms = menu.costs.other_ms(
            CollectiveLoad(*(np.concatenate(parts) for parts in zip(*(load.parts() for load in loads), strict=True)))
        )  # [C, D]
        delta = np.zeros((len(changes), num_devices, climber.sums.shape[1]), np.float32)
        for c, change in enumerate(changes):
            self._add(delta[c], mix, change.table, placed.device, -1.0)
            device = placed.device.copy()
            device[self.shards.table == change.table] = change.device
            self._add(delta[c], mixes[c], change.table, device, 1.0)
        touched = np.abs(delta).sum(axis=2) > 0  # [C, D]
        slowest = np.argsort(-(climber.compute_ms + climber.communication.own_ms))[:_WATCHED]
        watched = np.zeros_like(touched)
        watched[:, slowest] = True
        narrow = touched & (touched.sum(axis=1, keepdims=True) <= _WATCHED)
        changed = touched & (watched | narrow)
        where = np.nonzero(changed)
        compute = np.where(touched & ~changed, -np.inf, climber.compute_ms[None])
        forward, backward, _ = evaluator.compute(climber.sums[where[1]] + delta[where])
        compute[where] = forward + backward
        grown = evaluator.table_width(delta.reshape(-1, delta.shape[2])).reshape(touched.shape)
        communication = climber.communication
        own = communication.own_ms + np.float32(communication.own_ms_per_width) * grown
        result: Figures = (compute + own + other_ms).max(axis=1)
        result += communication.ms_per_width * (communication.width + grown).max(axis=1)
        return result

    def _add(self, sums: Array, mix: ShardingMix, table: int, device: Indices, sign: float) -> None:
        """Add the shards of a table to `sums` `[D, L]`."""
        kind, menu = int(mix.kind[table]), self.menu
        if kind == ON_DEVICES:
            mine = np.flatnonzero(self.shards.table == table)
            np.add.at(sums, device[mine], np.float32(sign) * self.shards.latents[mine])
        elif SPREADS[kind] in ("row_wise", "data_parallel"):
            sums += np.float32(sign) * menu.latents[table, kind]
        else:
            for host in mix.hosts[table]:
                sums[self._devices(host)] += np.float32(sign) * menu.latents[table, kind]


def _hosts(able: Indices, first: int, ranges: int) -> tuple[int, ...]:
    """One of the hosts `able` for each range, in turn from `first` on."""
    start = int(np.flatnonzero(able == first)[0])
    return tuple(int(able[(start + i) % len(able)]) for i in range(ranges))
