"""The ways in which each table of a task may be sharded, as the arrays that the search works on, and back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import Floats, Ints
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Columns,
    Placement,
    ShardingType,
    TableSharding,
)
from dreamshard.placer import NoPlacementError
from dreamshard.search.annealing import ON_ALL, ON_DEVICES, ON_HOST, Found, Menu
from dreamshard.search.packing import PlacementLimits
from dreamshard.shards import GRADIENT_BYTES, Shards, allowed_devices
from dreamshard.tables import DIM_MULTIPLE, parent_name
from dreamshard.tasks import PlacementTask

WHOLE, COLUMNS, ALL = range(3)
"""Levels of a search: as few ranges of columns as memory allows, any number of them, and every way that is allowed."""

_RANGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_NARROWEST_RANGE = 16  # columns of a range of a grid-sharded table
_TINY_BYTES = 2**22  # of a table that stays whole: its rows are in the cache anyway, however often they are looked up
_NARROWEST_FOR_SPEED = 8  # columns of a range that memory does not require: narrower rows waste memory transactions
_LEAST_ROWS = 2  # per device of a table whose rows are spread
_FREES_NOTHING = 1000  # tables with less than one in so many of all bytes stay in device memory
_CACHED_SHARES = (0.65, 0.4, 0.2, 0.1, 0.05, 0.02, 0.005)


_TABLE_WISE, _COLUMN_WISE, _ROW_WISE, _TABLE_ROW_WISE, _GRID, _COPIES = range(len(SHARDING_TYPES))
_IS_ON_DEVICE, _IS_EVERYWHERE, _IS_ON_HOST = (
    np.isin(SHARDING_TYPES, kinds) for kinds in (ON_ONE_DEVICE, ON_EVERY_DEVICE, ON_ONE_HOST)
)


@dataclass(frozen=True)
class Options:
    """The `O` options of a task's tables, by level, in the order of the menu.

    Tables that are to be together are one *item*, whose only option is whole.

    Attributes:
        task: whose tables these are.
        devices_per_host: devices that share a host.
        item: `[T]` the item of each table.
        of_item: `[O]`.
        level: `[O]` the first level at which a search may take it.
        kind: `[O]` positions in `SHARDING_TYPES`.
        cached_share: `[O]` of rows in device memory; NaN for a table that is not cached.
        ends: `[R]` column after the last one of each range.
        menu: the same for the search.
    """

    task: PlacementTask
    devices_per_host: int
    item: Ints
    of_item: Ints
    level: Ints
    kind: Ints
    cached_share: Floats
    ends: Ints
    menu: Menu

    @classmethod
    def of(
        cls,
        task: PlacementTask,
        devices_per_host: int,
        loads: Callable[[Shards], Floats],
        most: int,
        *,
        caching: bool,
    ) -> "Options":
        """All options up to a level that any device could hold.

        Args:
            task: to be placed.
            devices_per_host: devices that share a host.
            loads: `[S, L]` additive loads of shards.
            most: the highest level.
            caching: whether tables that may be in host memory have options there.

        Raises:
            NoPlacementError: tables that are to be together fit no device, or constraints leave a table no option.
        """
        limits = None if task.constraints.places_freely else PlacementLimits.of(task)
        item = np.arange(len(task.tables)) if limits is None else limits.item
        table = np.unique(item, return_index=True)[1]  # [I] the first of each item
        allowed = np.ones((len(table), task.num_devices), np.bool_) if limits is None else limits.allowed
        of_item, level, kind, parts, share = _options(task, item, table, allowed, devices_per_host, most, caching)
        return _with_menu(task, devices_per_host, item, table, allowed, loads, of_item, level, kind, parts, share)

    @cached_property
    def levels(self) -> Ints:
        """`[I, 3]` number of the item's options up to each level; never 0."""
        items = len(self.menu.allowed)
        counts = [np.bincount(self.of_item[self.level <= level], minlength=items) for level in range(ALL + 1)]
        return np.maximum(np.stack(counts, axis=1), 1)

    def up_to(self, level: int) -> Menu:
        """The menu up to a level."""
        return self.menu._replace(last_option=self.menu.first_option[:-1] + self.levels[:, level])

    def whole(self, device: Ints) -> tuple[Ints, Ints]:
        """Options and places of whole tables, on `device` `[T]`."""
        place = np.full((len(self.menu.allowed), self.most_ranges), -1)
        place[self.item[::-1], 0] = device[::-1]  # of an item's first table
        return self.menu.first_option[:-1].copy(), place

    def first_of(self, kind: ShardingType) -> Ints:
        """`[I]` the first option of each item that is of this kind and in device memory; -1 if there is none."""
        found = np.full(len(self.menu.allowed), -1)
        own = np.flatnonzero((self.kind == SHARDING_TYPES.index(kind)) & np.isnan(self.cached_share))[::-1]
        found[self.of_item[own]] = own
        return found

    def first_within(self, menu: Menu, widest: int) -> Ints:
        """`[I]` the first of each item's options, from a menu's first one on, that has no wider range; or the first one."""
        first = menu.first_option[:-1].copy()
        widths, starts = np.diff(self.ends, prepend=0), self.menu.first_range[:-1]
        widths[starts] = self.ends[starts]
        width = np.maximum.reduceat(widths, starts)  # [O]
        for i in np.flatnonzero(width[first] > widest).tolist():
            own = np.arange(first[i], menu.last_option[i])
            narrow = own[(width[own] <= widest) & (menu.spread[own] == ON_DEVICES)]
            first[i] = narrow[0] if len(narrow) and menu.spread[first[i]] == ON_DEVICES else first[i]
        return first

    @property
    def are_whole(self) -> bool:
        """Whether every table may be whole."""
        first = self.menu.first_option[:-1]
        return bool((_IS_ON_DEVICE[self.kind[first]] & (np.diff(self.menu.first_range)[first] == 1)).all())

    @property
    def most_ranges(self) -> int:
        """Ranges of columns of any option."""
        return int(np.diff(self.menu.first_range).max())

    def placement(self, found: Found, *, joined: bool) -> Placement:
        """The placement; `joined` makes ranges of a table that are on one device, or host, one wider range."""
        option, place = found.option[self.item], found.place[self.item].tolist()
        first, last = self.menu.first_range[option].tolist(), self.menu.first_range[option + 1].tolist()
        kinds, shares = self.kind[option].tolist(), self.cached_share[option].tolist()
        dims, ends, shardings = self.task.tables.dim.tolist(), self.ends.tolist(), []
        for t, kind in enumerate(kinds):
            columns = tuple(pairwise([0, *ends[first[t] : last[t] - 1], dims[t]]))
            where = () if _IS_EVERYWHERE[kind] else tuple(place[t][: len(columns)])
            share = None if np.isnan(shares[t]) else shares[t]
            if joined and len(set(where)) < len(where):
                kind, columns, where = self._joined(t, kind, columns, where)
            name = SHARDING_TYPES[kind]
            shardings.append(TableSharding(name, columns if name in SPLIT_BY_COLUMNS else (), where, share))
        return Placement(tuple(shardings), self.task.num_devices, self.devices_per_host)

    def _joined(
        self, table: int, kind: int, columns: Columns, where: tuple[int, ...]
    ) -> tuple[int, Columns, tuple[int, ...]]:
        """One wide range of all those that share a place."""
        together = [(place, len(list(own))) for place, own in groupby(sorted(where))]
        if len(together) == 1:
            whole = _TABLE_WISE if kind == _COLUMN_WISE else _TABLE_ROW_WISE
            types = self.task.constraints.sharding_types_for(parent_name(self.task.tables.names[table]))
            if SHARDING_TYPES[whole] not in types:
                return kind, columns, where
            kind = whole
        ends = np.cumsum([0] + [count for _, count in together]).tolist()
        wide = tuple((columns[a][0], columns[b - 1][1]) for a, b in pairwise(ends))
        return kind, wide, tuple(place for place, _ in together)


def _options(
    task: PlacementTask, item: Ints, table: Ints, allowed: NDArray[np.bool_], per_host: int, most: int, caching: bool
) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    """Item, level, kind, ranges of columns and cached share `[O]` of every option, those of lower levels first.

    Options that never pay are left out, unless the constraints leave no other.

    Raises:
        NoPlacementError: the constraints leave a table no option.
    """
    constraints, num_devices, count = task.constraints, task.num_devices, len(table)
    names = [parent_name(task.tables.names[t]) for t in table.tolist()]
    dim, rows = task.tables.dim.numpy()[table], task.tables.rows.numpy()[table]
    held, room, hosts = task.table_bytes.numpy()[table], int(task.capacity_bytes.max()), num_devices // per_host
    may_be = np.tile(np.isin(SHARDING_TYPES, constraints.sharding_types), (count, 1))  # [I, 6]
    narrowest, pinned, apart = np.zeros(count, np.int64), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    shares = np.tile([np.nan, *_CACHED_SHARES], (count, 1))  # [I, S]
    is_cached = np.zeros(shares.shape, np.bool_)
    is_cached[:, 0] = True
    if caching:
        is_cached[:, 1:] = (_FREES_NOTHING * held > int(task.table_bytes.sum()))[:, None]
    for i, name in enumerate(names) if constraints.tables_named() else ():
        if name in constraints.sharding_types_of:
            may_be[i] = np.isin(SHARDING_TYPES, constraints.sharding_types_of[name])
        narrowest[i] = constraints.narrowest_columns_of.get(name, 0)
        pinned[i] = len(constraints.pinned.get(name, ())) == 1
        apart[i] = any(name in group for group in constraints.apart)
        if name in constraints.cached_share_of:
            shares[i, 1], is_cached[i] = constraints.cached_share_of[name], np.arange(shares.shape[1]) == 1
        elif not constraints.may_be_cached(name):
            is_cached[i, 1:] = False
    grouped = np.bincount(item) > 1
    may_be[grouped] = np.arange(len(SHARDING_TYPES)) == _TABLE_WISE
    is_cached[grouped] = np.arange(shares.shape[1]) == 0
    widest_split = _most_ranges(dim, narrowest)
    for_speed = np.where(held > _TINY_BYTES, _most_ranges(dim, np.maximum(narrowest, _NARROWEST_FOR_SPEED)), 1)
    splits = np.where(pinned, 1, np.minimum(num_devices, np.where(held > room, widest_split, for_speed)))
    in_grid = np.minimum(hosts, _most_ranges(dim, np.maximum(narrowest, _NARROWEST_RANGE)))
    fills_hosts = num_devices % per_host == 0
    has_host: NDArray[np.bool_] = np.zeros(count, np.bool_)
    if fills_hosts:
        on_host: NDArray[np.bool_] = np.logical_and.reduce(allowed.reshape(count, -1, per_host), axis=2)
        has_host = np.logical_or.reduce(on_host, axis=1)

    columns: list[tuple[int, int, int, Ints, NDArray[np.bool_], NDArray[np.bool_]]] = []
    every = np.ones(count, np.int64)
    for s in range(shares.shape[1]):
        possible = may_be[:, _TABLE_WISE] & is_cached[:, s]
        columns.append((WHOLE, _TABLE_WISE, s, every, possible, possible))
        for k in _RANGES:
            possible = may_be[:, _COLUMN_WISE] & is_cached[:, s] & (k <= widest_split)
            columns.append((COLUMNS, _COLUMN_WISE, s, k * every, possible, possible & (k <= splits)))
        for kind in (_ROW_WISE, _TABLE_ROW_WISE, _GRID, _COPIES):
            possible = may_be[:, kind] & is_cached[:, s] & (allowed.all(1) if _IS_EVERYWHERE[kind] else has_host)
            if kind == _COPIES:
                possible &= s == 0
                sensible = possible & (num_devices > 1)
            else:
                blocks = num_devices if kind == _ROW_WISE else per_host
                sensible = possible & ~apart & (rows >= _LEAST_ROWS * blocks) & (num_devices > 1)
                sensible &= kind == _ROW_WISE or hosts > 1
            if kind == _GRID:
                sensible &= in_grid > 1
            columns.append((ALL, kind, s, in_grid if kind == _GRID else every, possible, sensible))
    columns = sorted((each for each in columns if each[0] <= most), key=lambda each: each[0])
    chosen = np.stack([each[5] for each in columns], axis=1)  # [I, C]
    possible = np.stack([each[4] for each in columns], axis=1)
    chosen = np.where(chosen.any(axis=1, keepdims=True), chosen, possible)
    has_way = chosen.any(axis=1)
    if not has_way.all():
        raise _no_way(task, names[int(has_way.argmin())], per_host)
    of_item, column = np.nonzero(chosen)
    levels, kinds, of_share = (np.array([each[field] for each in columns])[column] for field in range(3))
    parts = np.stack([each[3] for each in columns], axis=1)[of_item, column]
    return of_item, levels, kinds, parts, shares[of_item, of_share]


def _most_ranges(dim: Ints, narrowest: Ints) -> Ints:
    """`[I]` see `sharding.most_ranges`."""
    padded = -(-narrowest // DIM_MULTIPLE) * DIM_MULTIPLE
    return np.maximum(dim // np.maximum(padded, DIM_MULTIPLE), 1)


def _no_way(task: PlacementTask, name: str, per_host: int) -> NoPlacementError:
    """The error of a table that constraints leave no option."""
    constraints = task.constraints
    types = constraints.sharding_types_for(name)
    if name in constraints.cached_share_of and types == ("data_parallel",):
        reason = "it is to be in host memory, where no copy can be"
    elif set(types) <= {*ON_ONE_HOST} and task.num_devices % per_host:
        reason = f"the {task.num_devices} devices do not fill hosts of {per_host}"
    else:
        devices = allowed_devices(task)[task.tables.names.index(name)].nonzero().flatten().tolist()
        reason = f"it may use only devices {devices}"
    return NoPlacementError(f"table {name!r} may only be sharded {' or '.join(types)}, but {reason}; allow another way")


def _with_menu(
    task: PlacementTask,
    per_host: int,
    item: Ints,
    table: Ints,
    allowed: NDArray[np.bool_],
    loads: Callable[[Shards], Floats],
    of_item: Ints,
    level: Ints,
    kind: Ints,
    parts: Ints,
    share: Floats,
) -> Options:
    """The options that some device has room for, with their menu."""
    num_devices = task.num_devices
    of_range = np.repeat(np.arange(len(parts)), parts)  # [R] option of each range
    number = np.arange(len(of_range)) - np.repeat(np.cumsum(parts) - parts, parts)
    own, kinds = table[of_item[of_range]], kind[of_range]
    dim, rows = task.tables.dim.numpy(), task.tables.rows.numpy()
    units = dim[own] // DIM_MULTIPLE
    starts, ends = (DIM_MULTIPLE * (units * (number + more) // parts[of_range]) for more in (0, 1))
    over = np.where(kinds == _ROW_WISE, num_devices, np.where(_IS_ON_HOST[kinds], per_host, 1))
    block = -(-rows[own] // over)
    blocks = np.where(kinds == _COPIES, num_devices, -(-rows[own] // block))
    last = np.where(kinds == _COPIES, block, rows[own] - (blocks - 1) * block)
    load, size, shard_loads = _shard_loads(
        task, per_host, loads, own, kinds, np.stack([block, last], axis=1), ends - starts, share[of_range]
    )
    if (np.bincount(item) > 1).any():  # an item of several tables is their sum
        every = np.arange(len(item))
        held, sizes, summed = _shard_loads(
            task, per_host, loads, every, 0 * every, np.stack([rows, rows], axis=1), dim, np.full(len(item), np.nan)
        )
        of_items = np.zeros((len(table), summed.shape[1]))
        np.add.at(of_items, item, summed[held[:, 0]])
        grouped = (np.bincount(item) > 1)[of_item[of_range]]
        load[grouped] = len(shard_loads) + of_item[of_range][grouped, None]
        size[grouped] = np.bincount(item, sizes[:, 0]).astype(np.int64)[of_item[of_range]][grouped, None]
        shard_loads = np.concatenate([shard_loads, of_items])
    room = int(task.capacity_bytes.max())
    fits = np.bincount(of_range, size[:, 0] > room) == 0  # [O]
    is_last = np.append(of_item[1:] != of_item[:-1], True)
    fits |= is_last & ~np.isin(of_item, of_item[fits])
    kept = fits[of_range]
    of_item, level, kind, parts, share = (each[fits] for each in (of_item, level, kind, parts, share))
    load, size, blocks, widths, ends, kinds = (each[kept] for each in (load, size, blocks, ends - starts, ends, kinds))
    first = table[of_item]
    first_option = np.searchsorted(of_item, np.arange(len(table) + 1))
    first_group, groups, num_groups = _groups(task, item)
    menu = Menu(
        first_option=first_option,
        last_option=first_option[1:].copy(),
        spread=np.where(_IS_EVERYWHERE[kind], ON_ALL, np.where(_IS_ON_HOST[kind], ON_HOST, ON_DEVICES)),
        first_range=np.concatenate([[0], np.cumsum(parts)]),
        load=load[:, 0].copy(),
        last_load=load[:, 1].copy(),
        blocks=blocks,
        size=size[:, 0].copy(),
        last_size=size[:, 1].copy(),
        host_dims=np.where(_IS_ON_HOST[kinds], widths, 0).astype(np.float64),
        row_dims=np.where(kind == _ROW_WISE, dim[first], 0).astype(np.float64),
        copy_bytes=np.where(kind == _COPIES, GRADIENT_BYTES * rows[first] * dim[first], 0).astype(np.float64),
        loads=np.ascontiguousarray(shard_loads, np.float64),
        allowed=allowed,
        first_group=first_group,
        groups=groups,
        num_groups=num_groups,
        capacity=task.capacity_bytes.numpy().copy(),
        per_host=per_host,
        price_ms=np.zeros((0, 0)),
    )
    return Options(task, per_host, item, of_item, level, kind, share, ends, menu)


def _shard_loads(
    task: PlacementTask,
    per_host: int,
    loads: Callable[[Shards], Floats],
    table: Ints,
    kind: Ints,
    rows: Ints,
    width: Ints,
    share: Floats,
) -> tuple[Ints, Ints, Floats]:
    """Numbers `[R, 2]` and bytes of the full and of the last block of each range, and loads `[N, L]` by these numbers.

    Ranges of equal width, and blocks of equal length, have the same number.
    """
    alike = np.where(_IS_ON_DEVICE[kind], _TABLE_WISE, kind)
    shares, of_share = np.unique(share, return_inverse=True)
    keys = np.stack([alike, of_share, width // DIM_MULTIPLE, table], axis=1)
    base = keys @ np.array([1, len(SHARDING_TYPES), len(SHARDING_TYPES) * len(shares), 0])
    base = (base * len(task.tables) + table)[:, None] * 2 + (np.arange(2) * (rows != rows[:, :1]))
    _, where, number = np.unique(base.ravel(), return_index=True, return_inverse=True)
    of_range = where // 2
    own = torch.from_numpy(table[of_range])
    ends = [torch.from_numpy(each) for each in (rows.ravel()[where], width[of_range])]
    nothing = torch.zeros_like(own)
    shards = Shards.made(
        task,
        table=own,
        device=nothing,
        sharding_type=torch.from_numpy(alike[of_range]),
        rows=torch.stack([nothing, ends[0]], dim=1),
        columns=torch.stack([nothing, ends[1]], dim=1),
        cached_share=torch.from_numpy(share[of_range]),
        devices_per_host=per_host,
    )
    number = number.reshape(rows.shape)
    return number, shards.device_bytes.numpy()[number], loads(shards)


def _groups(task: PlacementTask, item: Ints) -> tuple[Ints, Ints, int]:
    """Groups of items to be kept apart, item by item."""
    names = [parent_name(name) for name in task.tables.names] if task.constraints.apart else []
    own: list[list[int]] = [[] for _ in range(int(item.max()) + 1)]
    for g, group in enumerate(task.constraints.apart):
        for i in sorted({int(item[t]) for t, name in enumerate(names) if name in group}):
            own[i].append(g)
    first = np.concatenate([[0], np.cumsum([len(each) for each in own])])
    return first, np.array([g for each in own for g in each], np.int64), len(task.constraints.apart)
