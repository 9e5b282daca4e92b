"""The ways in which each table of a task may be sharded, as the arrays that the search works on, and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import torch

from dreamshard.cost_model.compiled import Floats
from dreamshard.legality import allowed_devices
from dreamshard.limits import PlacementLimits
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Placement,
    ShardingType,
    TableSharding,
    even_columns,
    most_ranges,
    row_blocks,
)
from dreamshard.placer import NoPlacementError
from dreamshard.search.annealing import ON_ALL, ON_DEVICES, ON_HOST, Found, Ints, Menu
from dreamshard.shards import GRADIENT_BYTES, Shards
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

WHOLE, COLUMNS, ALL = range(3)
"""Levels of a search: as few ranges of columns as memory allows, any number of them, and every way that is allowed."""

_RANGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_NARROWEST_RANGE = 16  # columns of a range of a grid-sharded table
_TINY_BYTES = (
    2**22
)  # of a table that stays whole: ranges would repeat its lookups for rows that are in the cache anyway
_NARROWEST_FOR_SPEED = 16  # columns of a range that memory does not require: narrower rows waste memory transactions
_LEAST_ROWS = 2  # per device of a table whose rows are spread
_FREES_NOTHING = 1000  # tables with less than one in so many of all bytes stay in device memory
_CACHED_SHARES = (0.65, 0.4, 0.2, 0.1, 0.05, 0.02, 0.005)


@dataclass(frozen=True)
class _Option:
    """A way to shard one table; `level` is the first at which a search may take it."""

    level: int
    sharding_type: ShardingType
    columns: tuple[tuple[int, int], ...]
    cached_share: float | None


@dataclass(frozen=True)
class Options:
    """The options of a task's tables.

    Tables that are to be together are one *item*, whose only option is whole.

    Attributes:
        task: whose tables these are.
        devices_per_host: devices that share a host.
        item: `[T]` the item of each table.
        options: of each item.
        menu: the same as arrays.
    """

    task: PlacementTask
    devices_per_host: int
    item: Ints
    options: list[list[_Option]]
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
        members = np.bincount(item)
        per_table = [_options_of(task, t, devices_per_host, most, caching=caching) for t in range(len(task.tables))]
        options: list[list[_Option]] = [[] for _ in members]
        for t, i in enumerate(item.tolist()):
            options[i] = per_table[t] if members[i] == 1 else [_whole(task, t)]
        menu = _menu(task, devices_per_host, item, options, loads, limits)
        return cls(task, devices_per_host, item, options, menu)

    @cached_property
    def levels(self) -> Ints:
        """`[I, 3]` number of the item's options up to each level; never 0."""
        counts = [[sum(each.level <= level for each in own) or 1 for level in range(ALL + 1)] for own in self.options]
        return np.array(counts)

    def up_to(self, level: int) -> Menu:
        """The menu up to a level."""
        return self.menu._replace(last_option=self.menu.first_option[:-1] + self.levels[:, level])

    def found(self, device: Ints) -> Found:
        """A placement of whole tables, `device` `[T]`, whose cost is not known yet."""
        first = np.unique(self.item, return_index=True)[1]
        place = np.full((len(first), self.most_ranges), -1)
        place[:, 0] = device[first]
        return Found(self.menu.first_option[:-1].copy(), place, np.inf)

    def number_of(self, item: int, kind: ShardingType) -> int | None:
        """The first of an item's options of this kind, in device memory."""
        for number, option in enumerate(self.options[item]):
            if option.sharding_type == kind and option.cached_share is None:
                return int(self.menu.first_option[item]) + number
        return None

    @property
    def are_whole(self) -> bool:
        """Whether every table may be whole."""
        return all(own[0].sharding_type in ON_ONE_DEVICE and len(own[0].columns) == 1 for own in self.options)

    @property
    def most_ranges(self) -> int:
        """Ranges of columns of any option."""
        return int(np.diff(self.menu.first_range).max())

    def placement(self, found: Found, *, joined: bool) -> Placement:
        """The placement; `joined` makes ranges of a table that are on one device, or host, one wider range."""
        shardings, members = [], np.bincount(self.item)
        for t, i in enumerate(self.item.tolist()):
            option = self.options[i][int(found.option[i] - self.menu.first_option[i])]
            if members[i] > 1:
                option = _whole(self.task, t)
            places = tuple(found.place[i, : len(option.columns)].tolist())
            shardings.append(self._sharding(t, option, places, joined))
        return Placement(tuple(shardings), self.task.num_devices, self.devices_per_host)

    def _sharding(self, table: int, option: _Option, places: tuple[int, ...], joined: bool) -> TableSharding:
        kind, columns, share = option.sharding_type, option.columns, option.cached_share
        if kind in ON_EVERY_DEVICE:
            return TableSharding(kind, cached_share=share)
        together = [(place, len(list(own))) for place, own in groupby(sorted(places))]
        whole: ShardingType = "table_wise" if kind in ON_ONE_DEVICE else "table_row_wise"
        types = self.task.constraints.sharding_types_for(parent_name(self.task.tables.names[table]))
        if joined and len(together) < len(places) and (len(together) > 1 or whole in types):
            ends = np.cumsum([0] + [count for _, count in together])
            columns = tuple((columns[a][0], columns[b - 1][1]) for a, b in pairwise(ends.tolist()))
            places = tuple(place for place, _ in together)
            kind = whole if len(together) == 1 else kind
        return TableSharding(kind, columns if kind in SPLIT_BY_COLUMNS else (), places, share)


def _whole(task: PlacementTask, table: int, cached_share: float | None = None) -> _Option:
    return _Option(WHOLE, "table_wise", ((0, int(task.tables.dim[table])),), cached_share)


def _options_of(task: PlacementTask, table: int, per_host: int, most: int, *, caching: bool) -> list[_Option]:
    """The options of one table, those of lower levels first.

    Options that never pay are left out, unless the constraints leave no other.

    Raises:
        NoPlacementError: the constraints leave no option.
    """
    constraints, name = task.constraints, parent_name(task.tables.names[table])
    types = constraints.sharding_types_for(name)
    dim, rows, num_devices = int(task.tables.dim[table]), int(task.tables.rows[table]), task.num_devices
    hosts, held, room = num_devices // per_host, int(task.table_bytes[table]), int(task.capacity_bytes.max())
    narrowest = constraints.narrowest_columns_of.get(name, 0)
    shares: list[float | None] = [None]
    if name in constraints.cached_share_of:
        shares = [constraints.cached_share_of[name]]
    elif caching and constraints.may_be_cached(name) and _FREES_NOTHING * held > int(task.table_bytes.sum()):
        shares += _CACHED_SHARES
    apart = any(name in group for group in constraints.apart)
    everywhere = constraints.places_freely or bool(allowed_devices(task)[table].all())
    for_speed = most_ranges(dim, max(narrowest, _NARROWEST_FOR_SPEED)) if held > _TINY_BYTES else 1
    is_pinned = len(constraints.pinned.get(name, ())) == 1
    splits = 1 if is_pinned else min(num_devices, most_ranges(dim, narrowest) if held > room else for_speed)
    possible: list[_Option] = []
    sensible: list[_Option] = []
    for share in shares:
        for kind in types:
            blocks = {"data_parallel": 1, "row_wise": num_devices}.get(kind, per_host)
            if kind == "table_wise":
                possible.append(_whole(task, table, share))
                sensible.append(possible[-1])
            elif kind == "column_wise":
                for k in _RANGES:
                    if k <= most_ranges(dim, narrowest):
                        possible.append(_Option(COLUMNS, kind, even_columns(dim, k), share))
                        sensible += possible[-1:] if k <= splits else []
            elif not (
                (kind in ON_EVERY_DEVICE and not everywhere)
                or (kind == "data_parallel" and share is not None)
                or (kind in ON_ONE_HOST and not _has_host(task, table, per_host))
            ):
                parts = (
                    min(hosts, most_ranges(dim, max(_NARROWEST_RANGE, narrowest))) if kind in SPLIT_BY_COLUMNS else 1
                )
                possible.append(_Option(ALL, kind, even_columns(dim, parts), share))
                pays = kind == "data_parallel" or (not apart and rows >= _LEAST_ROWS * blocks)
                if pays and not (kind in ON_ONE_HOST and hosts == 1) and not (kind == "grid_shard" and parts == 1):
                    sensible += possible[-1:] if num_devices > 1 else []
    options = [each for each in sensible if each.level <= most] or [each for each in possible if each.level <= most]
    if not options:
        raise _no_way(task, name, per_host)
    return sorted(options, key=lambda option: option.level)


def _has_host(task: PlacementTask, table: int, per_host: int) -> bool:
    """Whether a table may use all devices of some host."""
    if task.num_devices % per_host:
        return False
    return bool(allowed_devices(task)[table].reshape(-1, per_host).all(dim=1).any())


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


def _menu(
    task: PlacementTask,
    per_host: int,
    item: Ints,
    options: Sequence[Sequence[_Option]],
    loads: Callable[[Shards], Floats],
    limits: PlacementLimits | None,
) -> Menu:
    """The arrays; options that no device has room for are left out of `options` too."""
    room = int(task.capacity_bytes.max())
    first_table = np.unique(item, return_index=True)[1].tolist()
    index: dict[tuple[int, int, int, int, float], int] = {}  # numbers of distinct shards by their fields

    def shard(t: int, kind: ShardingType, rows: int, width: int, share: float | None) -> int:
        number = SHARDING_TYPES.index("table_wise" if kind in ON_ONE_DEVICE else kind)
        return index.setdefault((t, number, rows, width, -1.0 if share is None else share), len(index))

    rows, dims = task.tables.rows.tolist(), task.tables.dim.tolist()
    ranges: list[list[list[tuple[int, int, int, int]]]] = []  # full block, last block, blocks, columns
    for i, own in enumerate(options):
        t = first_table[i]
        by_option = []
        for option in own:
            kind, count = option.sharding_type, 1
            if kind == "data_parallel":
                sizes = [rows[t]] * task.num_devices
            elif kind in ON_ONE_DEVICE:
                sizes = [rows[t]]
            else:
                count = task.num_devices if kind == "row_wise" else per_host
                sizes = [b - a for a, b in row_blocks(rows[t], count) if a < b]
            by_option.append(
                [
                    (
                        shard(t, kind, sizes[0], end - start, option.cached_share),
                        shard(t, kind, sizes[-1], end - start, option.cached_share),
                        len(sizes),
                        end - start,
                    )
                    for start, end in option.columns
                ]
            )
        ranges.append(by_option)
    members = np.bincount(item)
    grouped = [t for t, i in enumerate(item.tolist()) if members[i] > 1]
    alone = [shard(t, "table_wise", rows[t], dims[t], None) for t in grouped]
    shards = _distinct(task, np.array(list(index), np.float64).T, per_host)
    load, size = loads(shards), shards.device_bytes.numpy()
    extra_load: list[Floats] = []
    extra_size: list[int] = []
    for i in np.flatnonzero(members > 1).tolist():  # an item of several tables is their sum
        own_shards = [s for t, s in zip(grouped, alone, strict=True) if item[t] == i]
        number = len(index) + len(extra_load)
        extra_load.append(load[own_shards].sum(axis=0))
        extra_size.append(int(size[own_shards].sum()))
        ranges[i] = [[(number, number, 1, dims[first_table[i]])]]
    if extra_load:
        load, size = np.concatenate([load, np.stack(extra_load)]), np.concatenate([size, np.array(extra_size)])
    for i, own in enumerate(options):
        fits = [all(int(size[full]) <= room for full, *_ in by) for by in ranges[i]]
        kept = [o for o, fit in enumerate(fits) if fit] or [len(fits) - 1]
        ranges[i] = [ranges[i][o] for o in kept]
        if isinstance(own, list):
            own[:] = [own[o] for o in kept]
    flat = [(i, o, by) for i, per_item in enumerate(ranges) for o, by in enumerate(per_item)]
    kinds = [options[i][o].sharding_type for i, o, _ in flat]
    each = np.array([r for _, _, by in flat for r in by], np.int64)
    on_host = np.array([kind in ON_ONE_HOST for kind in kinds])
    counts = np.array([len(by) for _, _, by in flat])
    copies = [GRADIENT_BYTES * rows[first_table[i]] * dims[first_table[i]] if kind == "data_parallel" else 0
              for (i, _, _), kind in zip(flat, kinds, strict=True)]  # fmt: skip
    row_dims = [
        float(dims[first_table[i]]) if kind == "row_wise" else 0.0 for (i, _, _), kind in zip(flat, kinds, strict=True)
    ]
    allowed = np.ones((len(options), task.num_devices), np.bool_) if limits is None else limits.allowed
    first_group, groups, num_groups = _groups(task, item)
    first_option = np.concatenate([[0], np.cumsum([len(own) for own in ranges])])
    return Menu(
        first_option=first_option,
        last_option=first_option[1:].copy(),
        spread=np.array(
            [ON_ALL if k in ON_EVERY_DEVICE else (ON_HOST if k in ON_ONE_HOST else ON_DEVICES) for k in kinds]
        ),
        first_range=np.concatenate([[0], np.cumsum(counts)]),
        load=each[:, 0].copy(),
        last_load=each[:, 1].copy(),
        blocks=each[:, 2].copy(),
        size=size[each[:, 0]],
        last_size=size[each[:, 1]],
        host_dims=np.where(np.repeat(on_host, counts), each[:, 3], 0).astype(np.float64),
        row_dims=np.array(row_dims),
        copy_bytes=np.array(copies, np.float64),
        loads=np.ascontiguousarray(load, np.float64),
        allowed=allowed,
        first_group=first_group,
        groups=groups,
        num_groups=num_groups,
        capacity=task.capacity_bytes.numpy().copy(),
        per_host=per_host,
        price_ms=np.zeros((0, 0)),
    )


def _distinct(task: PlacementTask, fields: Floats, per_host: int) -> Shards:
    """Shards by table, kind, rows, columns and cached share (below zero in device memory), `[5, S]`, all on device 0."""
    table, kind, rows, width = torch.from_numpy(fields[:4].astype(np.int64))
    nothing, share = torch.zeros_like(table), torch.from_numpy(fields[4])
    return Shards.made(
        task,
        table=table,
        device=nothing,
        sharding_type=kind,
        rows=torch.stack([nothing, rows], dim=1),
        columns=torch.stack([nothing, width], dim=1),
        cached_share=torch.where(share < 0, torch.nan, share),
        devices_per_host=per_host,
    )


def _groups(task: PlacementTask, item: Ints) -> tuple[Ints, Ints, int]:
    """Groups of items to be kept apart, item by item."""
    names = [parent_name(name) for name in task.tables.names] if task.constraints.apart else []
    own: list[list[int]] = [[] for _ in range(int(item.max()) + 1)]
    for g, group in enumerate(task.constraints.apart):
        for i in sorted({int(item[t]) for t, name in enumerate(names) if name in group}):
            own[i].append(g)
    first = np.concatenate([[0], np.cumsum([len(each) for each in own])])
    return first, np.array([g for each in own for g in each], np.int64), len(task.constraints.apart)
