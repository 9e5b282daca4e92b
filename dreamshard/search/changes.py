"""Costs of placements that differ from one in a single table, and a search among given ways to shard, by the same sums."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import DeviceLaw, Floats, Ints, device_ms, jit
from dreamshard.costs import DeviceCosts
from dreamshard.placement import ON_EVERY_DEVICE, ON_ONE_HOST, Placement, TableSharding
from dreamshard.search.annealing import (
    ON_ALL,
    ON_DEVICES,
    ON_HOST,
    Menu,
    State,
    overall_ms,
    put,
    state_of,
    take,
)
from dreamshard.search.costs import SearchCosts
from dreamshard.search.packing import PlacementLimits
from dreamshard.shards import GRADIENT_BYTES, Shards
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask


def on_its_hosts(task: PlacementTask, placement: Placement) -> PlacementTask:
    """The task on the hosts of a placement, if that has tables on one host."""
    if placement.sharding_types & set(ON_ONE_HOST):
        return replace(task, devices_per_host=placement.devices_per_host)
    return task


@runtime_checkable
class Predictor(Protocol):
    """Costs of placements, and of their shards."""

    def costs(self, task: PlacementTask) -> SearchCosts:
        """Costs of a task's shards; a ValueError if a network does not tell communication from compute."""
        ...

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase; a ValueError if costs of such shards are not known."""
        ...


def known_costs(predictor: Predictor, task: PlacementTask, placement: Placement) -> SearchCosts | None:
    """Costs of a task's shards; None if the predictor has none of the shards of a placement.

    Some networks do not tell communication from compute, and none knows tables in host memory.
    """
    try:
        costs = predictor.costs(on_its_hosts(task, placement))
        costs.loads(Shards.of(task, placement))
    except ValueError:
        return None
    return costs


@dataclass(frozen=True)
class Ways:
    """Given ways to shard each table, as a menu of the search.

    Tables that are to be together are one *item*, which is whole.

    Attributes:
        task: whose tables these are.
        item: `[T]` the item of each table.
        options: `[O]` of all items, each at the first place.
        menu: the same as arrays, also of ways for which no device has room.
        shards: of all options, each at the first place, so that `device` numbers the blocks of a range.
        of_range: `[S]` range of the menu that a shard is of.
    """

    task: PlacementTask
    item: Ints
    options: tuple[TableSharding, ...]
    menu: Menu
    shards: Shards
    of_range: Ints

    @classmethod
    def of(cls, task: PlacementTask, costs: SearchCosts, ways: Sequence[Sequence[TableSharding]]) -> "Ways":
        """The ways of each table, wherever it is in them; a way may be given more than once."""
        limits = None if task.constraints.places_freely else PlacementLimits.of(task)
        item = np.arange(len(task.tables)) if limits is None else limits.item
        members: list[list[int]] = [[] for _ in range(int(item.max()) + 1)]
        for t, i in enumerate(item.tolist()):
            members[i].append(t)
        whole = TableSharding("table_wise", where=(0,))
        of_item = [
            list(dict.fromkeys(_anywhere(each) for each in ways[own[0]])) if len(own) == 1 else [whole]
            for own in members
        ]
        options = tuple(each for own in of_item for each in own)
        first_option = np.concatenate([[0], np.cumsum([len(own) for own in of_item])])
        table = np.array([own[0] for own in members]).repeat(np.diff(first_option))  # [O] the first of its item
        rows, dims = task.tables.rows.numpy()[table], task.tables.dim.numpy()[table]  # [O]
        kinds = [each.sharding_type for each in options]
        on_host, on_all = np.isin(kinds, ON_ONE_HOST), np.isin(kinds, ON_EVERY_DEVICE)
        copied, by_rows = np.array(kinds) == "data_parallel", np.array(kinds) == "row_wise"
        parts = np.where(on_host, costs.devices_per_host, np.where(on_all, task.num_devices, 1))
        blocks = np.where(copied, parts, -(-rows // -(-rows // parts)))  # [O] without empty ones
        ranges = np.array([max(len(each.columns), 1) for each in options])  # [O]
        first_range = np.concatenate([[0], np.cumsum(ranges)])
        entries = [
            (t, o)
            for own, a, b in zip(members, first_option[:-1], first_option[1:], strict=True)
            for o in range(a, b)
            for t in own
        ]
        shards = Shards.of_tables(task, [(t, options[o]) for t, o in entries], costs.devices_per_host)
        of_range = np.array([r for _, o in entries for r in range(first_range[o], first_range[o + 1])])
        of_range = of_range.repeat(blocks.repeat(ranges)[of_range])  # [S]
        block, size, loads = shards.device.numpy(), shards.device_bytes.numpy(), costs.loads(shards)
        last = blocks.repeat(ranges)[of_range] - 1
        count = first_range[-1]
        held, sizes = np.zeros((2 * count, loads.shape[1])), np.zeros(2 * count, np.int64)
        for offset, own in ((0, block == 0), (count, block == last)):  # an item of several tables is their sum
            np.add.at(held, offset + of_range[own], loads[own])
            np.add.at(sizes, offset + of_range[own], size[own])
        widths = np.zeros(count)
        widths[of_range] = (shards.columns[:, 1] - shards.columns[:, 0]).numpy()
        groups = [
            [g for g, group in enumerate(task.constraints.apart) if any(name in group for name in names)]
            for names in ([parent_name(task.tables.names[t]) for t in own] for own in members)
        ]
        menu = Menu(
            first_option=first_option,
            last_option=first_option[1:].copy(),
            spread=np.where(on_all, ON_ALL, np.where(on_host, ON_HOST, ON_DEVICES)),
            first_range=first_range,
            load=np.arange(count),
            last_load=np.arange(count, 2 * count),
            blocks=blocks.repeat(ranges),
            size=sizes[:count],
            last_size=sizes[count:],
            host_dims=widths * on_host.repeat(ranges),
            row_dims=(by_rows * dims).astype(np.float64),
            copy_bytes=(copied * GRADIENT_BYTES * rows * dims).astype(np.float64),
            loads=held,
            allowed=np.ones((len(members), task.num_devices), np.bool_) if limits is None else limits.allowed,
            first_group=np.concatenate([[0], np.cumsum([len(own) for own in groups])]),
            groups=np.array([g for own in groups for g in own], np.int64),
            num_groups=len(task.constraints.apart),
            capacity=task.capacity_bytes.numpy().copy(),
            per_host=costs.devices_per_host,
            price_ms=np.zeros((0, 0)),
        )
        return cls(task, item, options, menu, shards, of_range)

    def located(self, placement: Placement) -> tuple[Ints, Ints]:
        """`[I]` options and `[I, K]` places of a placement, of items of several tables as of their first one."""
        ranges = int(np.diff(self.menu.first_range).max())
        option, place = np.full(len(self.menu.allowed), -1), np.full((len(self.menu.allowed), ranges), -1)
        for t, i in reversed(list(enumerate(self.item.tolist()))):
            option[i], places = self.place_of(t, placement.tables[t])
            place[i] = -1
            place[i, : len(places)] = places
        return option, place

    def place_of(self, table: int, sharding: TableSharding) -> tuple[int, tuple[int, ...]]:
        """The option that shards a table in this way, and the places of its ranges."""
        first, last = self.menu.first_option[self.item[table] : self.item[table] + 2].tolist()
        number = first if last == first + 1 else first + self.options[first:last].index(_anywhere(sharding))
        return number, (sharding.where or (0,))[: max(len(self.options[number].columns), 1)]

    def placement(self, option: Ints, place: Ints) -> Placement:
        """The placement of options `[I]` and places `[I, K]`."""
        tables = []
        for i in self.item.tolist():
            way = self.options[option[i]]
            tables.append(replace(way, where=tuple(place[i, : len(way.where)].tolist())))
        return Placement(tuple(tables), self.task.num_devices, self.menu.per_host)


def _anywhere(sharding: TableSharding) -> TableSharding:
    return replace(sharding, where=(0,) * len(sharding.where))


class Changed(NamedTuple):
    """Costs after each of `N` changes.

    Attributes:
        device_ms: `[N, D]`.
        fits: `[N]` whether every device has room.
    """

    device_ms: Floats
    fits: NDArray[np.bool_]


@dataclass(frozen=True)
class Changes:
    """A placement of which one table at a time is changed.

    Tables that are to be together, or apart, change alone.

    Attributes:
        ways: to shard, of the placement and of its changes.
        law: of costs.
        state: of the placement.
    """

    ways: Ways
    law: DeviceLaw
    state: State

    @classmethod
    def of(
        cls,
        task: PlacementTask,
        costs: SearchCosts,
        placement: Placement,
        others: Sequence[Sequence[TableSharding]] | None = None,
    ) -> "Changes":
        """Changes of a placement to `others`, ways to shard each table."""
        alone = replace(task, constraints=replace(task.constraints, together=(), apart=()))
        more = [[]] * len(placement.tables) if others is None else others
        ways = Ways.of(alone, costs, [[now, *own] for now, own in zip(placement.tables, more, strict=True)])
        law = costs.law()
        return cls(ways, law, state_of(ways.menu, law, *ways.located(placement)))

    def device_ms(self) -> Floats:
        """`[D]` of the placement itself."""
        own_ms = self.state.own_ms
        waits_ms: float = overall_ms(self.law, self.state) - own_ms.max()
        return own_ms + waits_ms

    def after(self, changes: Sequence[tuple[int, TableSharding | None]]) -> Changed:
        """Costs once a table is sharded otherwise, or is gone."""
        tables = np.array([t for t, _ in changes], np.int64)
        options = np.full(len(changes), -1)
        places = np.zeros((len(changes), self.state.place.shape[1]), np.int64)
        for n, (t, sharding) in enumerate(changes):
            if sharding is not None:
                options[n], own = self.ways.place_of(t, sharding)
                places[n, : len(own)] = own
        found = Changed(np.empty((len(changes), len(self.state.own_ms))), np.ones(len(changes), np.bool_))
        _change(self.ways.menu, self.law, self.state, tables, options, places, *found)
        return found


@jit
def _change(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    tables: Ints,
    options: Ints,
    places: Ints,
    found_ms: Floats,
    fits: NDArray[np.bool_],
) -> None:
    num_devices, columns = state.sums.shape
    sums, used, own_ms = state.sums.copy(), state.used.copy(), state.own_ms.copy()
    hosts, totals = state.host_dims.copy(), state.totals.copy()
    for n in range(len(tables)):
        t = tables[n]
        old, old_places = state.option[t], state.place[t].copy()
        take(menu, law, state, t)
        if options[n] >= 0:
            put(menu, law, state, t, options[n], places[n])
        for d in range(num_devices):
            for c in range(columns):
                if state.sums[d, c] != sums[d, c]:
                    state.own_ms[d] = device_ms(law, state.sums[d])
                    break
            fits[n] = fits[n] and state.used[d] <= menu.capacity[d]
        found_ms[n] = state.own_ms + (overall_ms(law, state) - state.own_ms.max())
        if options[n] >= 0:
            take(menu, law, state, t)
        put(menu, law, state, t, old, old_places)
        state.sums[:], state.used[:], state.own_ms[:] = sums, used, own_ms  # exactly, without rounding errors
        state.host_dims[:], state.totals[:] = hosts, totals
