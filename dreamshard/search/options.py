"""The options of sharding each table of a task, as the arrays that the search works on, and back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import DeviceLaw, Floats, Ints, Mask, first_ms
from dreamshard.search.annealing import ON_ALL, ON_DEVICES, ON_HOST, Found, Menu
from dreamshard.search.costs import CostModel
from dreamshard.search.packing import PlacementLimits
from dreamshard.tables import (
    DIM_MULTIPLE,
    ON_EVERY_DEVICE,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    WIDEST_SHARD,
    Columns,
    Placement,
    ShardingType,
    TableSharding,
    most_ranges,
)
from dreamshard.tasks import NoPlacementError, PlacementTask, Shards

_RANGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_FEW_TABLES = 4  # per device, with which ranges of `DIM_MULTIPLE` columns may pay: wider ones leave devices uneven
WORTH = 0.003
"""Share of the cost that further sharding types, caches, or a further round must save; of the bytes, of a cached table."""
_CACHED_SHARES = (0.65, 0.4, 0.2, 0.1, 0.05, 0.02, 0.005)

_TABLE_WISE, _COLUMN_WISE, _ROW_WISE, _TABLE_ROW_WISE, _GRID, _COPIES = range(len(SHARDING_TYPES))
_IS_ON_DEVICE, _IS_EVERYWHERE, _IS_ON_HOST = (
    np.isin(SHARDING_TYPES, kinds) for kinds in (ON_ONE_DEVICE, ON_EVERY_DEVICE, ON_ONE_HOST)
)


class _Fields(NamedTuple):
    """Fields of `O` options.

    Attributes:
        of_item: `[O]`.
        number: `[O]` among all options.
        spare: `[O]` whether it never pays, and is only for items without another.
        kind: `[O]` positions in `SHARDING_TYPES`.
        share: `[O]` of rows in device memory; NaN for a table that is not cached.
        parts: `[O]` ranges of columns.
        start: `[R]` first column of each range; `end` `[R]` the one after its last.
    """

    of_item: Ints
    number: Ints
    spare: Mask
    kind: Ints
    share: Floats
    parts: Ints
    start: Ints
    end: Ints

    def select(self, kept: Mask) -> "_Fields":
        """Some of them."""
        of_range = np.repeat(kept, self.parts)
        columns = self._asdict().items()
        return _Fields(**{name: of[of_range if name in ("start", "end") else kept] for name, of in columns})


@dataclass(frozen=True)
class ShardingOptions:
    """The `O` options of a task's tables, item by item; tables that are to be together are one item, which is whole.

    Attributes:
        task: whose tables these are.
        item: `[T]` the item of each table.
        fields: of the options, in the order of the menu.
        menu: the same options for the search.
    """

    task: PlacementTask
    item: Ints
    fields: _Fields
    menu: Menu

    @classmethod
    def of(
        cls, task: PlacementTask, model: CostModel, *, columns: bool = True, caching: bool = False
    ) -> "ShardingOptions":
        """All options that some device has memory for, or the last one of an item without any.

        Args:
            task: to be placed.
            model: of costs.
            columns: whether whole tables may be split; otherwise as few ranges as memory allows.
            caching: whether tables that may be in host memory have options there.

        Raises:
            NoPlacementError: tables that are to be together fit no device, or constraints leave a table no option.
        """
        limits = PlacementLimits.of(task)
        is_spread = bool(task.constraints.all_sharding_types - set(ON_ONE_DEVICE))
        fields = _sensible_options(task, limits, model, caching)
        options = cls._made(task, model, model.law(on_several=is_spread), limits, fields)
        largest = np.maximum.reduceat(options.menu.size, options.menu.first_range[:-1])  # [O]
        fits = largest <= int(task.capacity_bytes.max())
        fits[options.menu.last_option - 1] |= ~np.logical_or.reduceat(fits, options.menu.first_option[:-1])
        options = options._select(fits)
        if columns or is_spread:
            return options
        kind, first = options.fields.kind, options.menu.first_option[:-1]
        return options._select((kind == _TABLE_WISE) | np.isin(np.arange(len(kind)), first[kind[first] != _TABLE_WISE]))

    @classmethod
    def given(
        cls, task: PlacementTask, model: CostModel, placements: Sequence[Placement]
    ) -> tuple["ShardingOptions", list[tuple[Ints, Ints]]]:
        """The options of some placements, whether they fit in memory or not, and the options and places of each."""
        limits, whole = PlacementLimits.of(task), TableSharding("table_wise", where=(0,))
        first, grouped = limits.first.tolist(), np.bincount(limits.item) > 1
        placed = [[placement.tables[t] for placement in placements] for t in first]
        anywhere = [
            [whole if grouped[i] else replace(sharding, where=(0,) * len(sharding.where)) for sharding in shardings]
            for i, shardings in enumerate(placed)
        ]
        flat = [(i, sharding) for i, shardings in enumerate(anywhere) for sharding in dict.fromkeys(shardings)]
        number = {key: o for o, key in enumerate(flat)}
        dims = task.tables.dim[torch.from_numpy(limits.first)].tolist()
        ranges = [sharding.ranges(dims[i]) for i, sharding in flat]
        parts, (start, end) = np.array([*map(len, ranges)]), np.array([*chain(*ranges)]).T.copy()
        kinds = np.array([SHARDING_TYPES.index(sharding.sharding_type) for _, sharding in flat])
        shares = np.array([sharding.cached_share or np.nan for _, sharding in flat])
        fields = _Fields(
            np.array([i for i, _ in flat]), np.arange(len(flat)), kinds < 0, kinds, shares, parts, start, end
        )
        options, states = cls._made(task, model, model.law(), limits, fields), []
        for n in range(len(placements)):
            option = np.array([number[i, shardings[n]] for i, shardings in enumerate(anywhere)])
            place = options._nowhere()
            for i, shardings in enumerate(placed):
                where = (shardings[n].where or (0,))[: parts[option[i]]]
                place[i, : len(where)] = where
            states.append((option, place))
        return options, states

    @classmethod
    def _made(
        cls, task: PlacementTask, model: CostModel, law: DeviceLaw, limits: PlacementLimits, fields: _Fields
    ) -> "ShardingOptions":
        """Options with their menu."""
        per_host, item, table = model.devices_per_host, limits.item, limits.first
        rows = task.tables.rows.numpy()
        of_range = np.repeat(np.arange(len(fields.parts)), fields.parts)  # [R] option of each range
        table_of, kind = table[fields.of_item[of_range]], fields.kind[of_range]
        over = np.where(kind == _ROW_WISE, task.num_devices, np.where(_IS_ON_HOST[kind], per_host, 1))
        block = -(-rows[table_of] // over)
        blocks = np.where(kind == _COPIES, task.num_devices, -(-rows[table_of] // block))
        width, share = fields.end - fields.start, fields.share[of_range]
        load, step, size, loads = _shard_loads(task, model, table_of, kind, block, blocks, width, share)
        grouped = np.bincount(item) > 1
        if grouped.any():  # an item of several tables is their sum
            whole = model.loads(Shards.of(task, Placement.whole([0] * len(item), task.num_devices)))
            of_items = np.zeros((len(table), whole.shape[1]))
            np.add.at(of_items, item, whole)
            is_group = grouped[fields.of_item[of_range]]
            load[is_group] = len(loads) + fields.of_item[of_range][is_group]
            size[is_group] = limits.item_bytes[fields.of_item[of_range]][is_group]
            loads = np.concatenate([loads, of_items])
        loads, first_option = np.ascontiguousarray(loads), np.searchsorted(fields.of_item, np.arange(len(table) + 1))
        scope = np.where(_IS_EVERYWHERE[fields.kind], ON_ALL, np.where(_IS_ON_HOST[fields.kind], ON_HOST, ON_DEVICES))
        menu = Menu(
            first_option=first_option,
            last_option=first_option[1:].copy(),
            scope=scope,
            first_range=np.concatenate([[0], np.cumsum(fields.parts)]),
            load=load,
            step=step,
            blocks=blocks,
            size=size,
            law=law,
            loads=loads,
            row_ms=first_ms(law, loads),
            allowed=limits.allowed,
            first_group=limits.first_group,
            groups=limits.groups,
            num_groups=len(task.constraints.apart),
            capacity=limits.capacity_bytes,
            per_host=per_host,
            price_ms=np.zeros((0, 0)),
            excess=model.excess,
        )
        return cls(task, item, fields, menu)

    @property
    def types(self) -> frozenset[ShardingType]:
        """Sharding types that any item may have."""
        return frozenset(SHARDING_TYPES[kind] for kind in np.unique(self.fields.kind))

    def only(self, types: frozenset[ShardingType]) -> "ShardingOptions | None":
        """The options of these sharding types; None if an item has none."""
        able = np.isin(SHARDING_TYPES, list(types))[self.fields.kind]
        pays = np.zeros(len(self.menu.allowed), np.bool_)
        pays[self.fields.of_item[able & ~self.fields.spare]] = True
        kept = able & (~self.fields.spare | ~pays[self.fields.of_item])
        return self._select(kept) if len(np.unique(self.fields.of_item[kept])) == len(pays) else None

    def _select(self, kept: Mask) -> "ShardingOptions":
        """Some of the options, at least one of each item."""
        if kept.all():
            return self
        menu, fields, of_range = self.menu, self.fields.select(kept), np.repeat(kept, self.fields.parts)
        first = np.searchsorted(fields.of_item, np.arange(len(menu.first_option)))
        menu = menu._replace(
            first_option=first,
            last_option=first[1:].copy(),
            scope=menu.scope[kept],
            first_range=np.concatenate([[0], np.cumsum(fields.parts)]),
            load=menu.load[of_range],
            step=menu.step[of_range],
            blocks=menu.blocks[of_range],
            size=menu.size[of_range],
        )
        return replace(self, fields=fields, menu=menu)

    def translated(self, other: "ShardingOptions", result: Found) -> list[Found]:
        """A placement by other options of the same task; none if these lack one of its options."""
        wanted = other.fields.number[result.option]
        option = np.minimum(np.searchsorted(self.fields.number, wanted), len(self.fields.number) - 1)
        place = self._nowhere()
        place[:, : result.place.shape[1]] = result.place[:, : place.shape[1]]
        return [Found(option, place, result.cost_ms)] if (self.fields.number[option] == wanted).all() else []

    def _nowhere(self) -> Ints:
        """`[I, K]` places of ranges that are nowhere."""
        return np.full((len(self.menu.allowed), int(self.fields.parts.max())), -1)

    def whole(self, device: Ints) -> tuple[Ints, Ints]:
        """Options and places of whole tables, on `device` `[T]`."""
        place = self._nowhere()
        place[self.item[::-1], 0] = device[::-1]  # of an item's first table
        return self.menu.first_option[:-1].copy(), place

    def first_of(self, kind: ShardingType) -> Ints:
        """`[I]` the first option of each item that is of this kind and in device memory; -1 if there is none."""
        first = np.full(len(self.menu.allowed), -1)
        options = np.flatnonzero((self.fields.kind == SHARDING_TYPES.index(kind)) & np.isnan(self.fields.share))[::-1]
        first[self.fields.of_item[options]] = options
        return first

    def first_within(self, menu: Menu, most: float, of_range: Ints) -> Ints:
        """`[I]` the first of each item's options, from a menu's first one on, whose ranges have at most so much `[R]`.

        The first one for an item that has no such option, or whose first one is on several devices.
        """
        first, on_devices = menu.first_option[:-1], menu.scope == ON_DEVICES
        largest = np.maximum.reduceat(of_range, menu.first_range[:-1])  # [O]
        able = np.where((largest <= most) & on_devices, np.arange(len(largest)), len(largest))
        able = np.minimum.accumulate(able[::-1])[::-1][first]  # the next one from there on
        return np.where(on_devices[first] & (able < menu.last_option), able, first)

    @property
    def complexity(self) -> tuple[bool, int]:
        """Whether tables may be cached, and the number of sharding types."""
        return not np.isnan(self.fields.share).all(), len(self.types)

    @property
    def are_whole(self) -> bool:
        """Whether every table may be whole."""
        return bool((self.fields.kind[self.menu.first_option[:-1]] == _TABLE_WISE).all())

    def placement(self, result: Found, *, joined: bool) -> Placement:
        """The placement; `joined` makes ranges of a table that are on one device, or host, one wider range."""
        fields, option, place = self.fields, result.option[self.item], result.place[self.item].tolist()
        dims, shardings, sharding = self.task.tables.dim.tolist(), [], cache(TableSharding)
        each = (values[option].tolist() for values in (fields.kind, fields.parts, fields.share, self.menu.first_range))
        for t, (kind, parts, share, first) in enumerate(zip(*each, strict=True)):
            columns: Columns = ()
            where = () if _IS_EVERYWHERE[kind] else tuple(place[t][:parts])
            if SHARDING_TYPES[kind] in SPLIT_BY_COLUMNS:
                columns = tuple(pairwise([0, *fields.end[first : first + parts - 1].tolist(), dims[t]]))
                if joined and len(set(where)) < len(where) and dims[t] <= WIDEST_SHARD:
                    kind, columns, where = self._joined(t, kind, columns, where)
            shardings.append(sharding(SHARDING_TYPES[kind], columns, where, None if math.isnan(share) else share))
        return Placement(tuple(shardings), self.task.num_devices, self.menu.per_host)

    def _joined(
        self, table: int, kind: int, columns: Columns, where: tuple[int, ...]
    ) -> tuple[int, Columns, tuple[int, ...]]:
        """One wide range of all those that share a place."""
        together = [(place, len(list(ranges))) for place, ranges in groupby(sorted(where))]
        if len(together) == 1:
            whole = _TABLE_WISE if kind == _COLUMN_WISE else _TABLE_ROW_WISE
            types = self.task.constraints.sharding_types_for(self.task.tables.names[table])
            return (whole, (), where[:1]) if SHARDING_TYPES[whole] in types else (kind, columns, where)
        ends = np.cumsum([0] + [count for _, count in together]).tolist()
        wide = tuple((columns[a][0], columns[b - 1][1]) for a, b in pairwise(ends))
        return kind, wide, tuple(place for place, _ in together)

    def shards(self) -> tuple[Shards, Ints]:
        """Shards of all options, each range at the first place, so that `device` numbers its blocks; `[S]` their ranges."""
        fields, first = self.fields, self.menu.first_range[self.menu.first_option]  # [I + 1] ranges of each item
        number = np.concatenate([np.arange(first[i], first[i + 1]) for i in self.item])  # [N] ranges of each table
        table = np.repeat(np.arange(len(self.item)), np.diff(first)[self.item])
        option = np.repeat(np.arange(len(fields.parts)), fields.parts)[number]
        kind, dim = fields.kind[option], self.task.tables.dim.numpy()[table]
        end = np.where(fields.parts[option] > 1, fields.end[number], dim)
        ranges = np.stack([table, kind, fields.start[number], end, 0 * table, fields.share[option]])
        shards, of_range = Shards.of_ranges(self.task, torch.from_numpy(ranges), self.menu.per_host)
        return shards, number[of_range.numpy()]


class _Offer(NamedTuple):
    """An option of every item.

    Attributes:
        share: column of the cached share; 0 for none.
        parts: `[I]` ranges of columns.
        possible: `[I]` whether the constraints allow it.
        sensible: `[I]` whether it may pay, too.
    """

    kind: int
    share: int
    parts: Ints
    possible: Mask
    sensible: Mask


def _sensible_options(task: PlacementTask, limits: PlacementLimits, model: CostModel, caching: bool) -> _Fields:
    """All options, item by item: whole, by columns, then over several devices.

    If no option of a type ever pays, only the first one is kept, as a spare.

    Raises:
        NoPlacementError: the constraints leave a table no option.
    """
    constraints, num_devices, table, allowed = task.constraints, task.num_devices, limits.first, limits.allowed
    per_host, count, named = model.devices_per_host, len(table), constraints.tables_named()
    dim, rows = task.tables.dim.numpy()[table], task.tables.rows.numpy()[table]
    held, most_memory, hosts = task.table_bytes.numpy()[table], int(task.capacity_bytes.max()), num_devices // per_host
    may_be = np.tile(np.isin(SHARDING_TYPES, constraints.usual_types), (count, 1))  # [I, 6]
    narrowest, apart = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    cached = _CACHED_SHARES if caching else (np.nan,)
    shares = np.tile([np.nan, *cached], (count, 1))  # [I, S]
    is_cached = np.tile(caching & (held > WORTH * int(task.table_bytes.sum())), (shares.shape[1], 1)).T
    is_cached[:, 0] = True
    for i, t in enumerate(table.tolist() if named else ()):
        name = task.tables.names[t]
        may_be[i] = np.isin(SHARDING_TYPES, constraints.sharding_types_for(name))
        narrowest[i] = constraints.narrowest_columns_of.get(name, 0)
        apart[i] = any(name in group for group in constraints.apart)
        if share := constraints.cached_share_of.get(name):
            shares[i, 1], is_cached[i] = share, np.arange(shares.shape[1]) == 1
        elif not constraints.may_be_cached(name):
            is_cached[i, 1:] = False
    grouped = np.bincount(limits.item) > 1
    may_be[grouped] = np.arange(len(SHARDING_TYPES)) == _TABLE_WISE
    is_cached[grouped] = np.arange(shares.shape[1]) == 0
    widest_split = most_ranges(dim, narrowest)
    least = max(model.narrowest, DIM_MULTIPLE if count <= _FEW_TABLES * num_devices else 2 * DIM_MULTIPLE)
    for_speed = most_ranges(dim, np.maximum(narrowest, least))
    splits = np.where(
        allowed.sum(axis=1) == 1, 1, np.minimum(num_devices, np.where(held > most_memory, widest_split, for_speed))
    )
    in_grid = np.minimum(hosts, for_speed)
    has_host: Mask = np.zeros(count, np.bool_)
    if num_devices % per_host == 0:
        whole_host: Mask = np.logical_and.reduce(allowed.reshape(count, -1, per_host), axis=2)
        has_host = np.logical_or.reduce(whole_host, axis=1)

    every, offers = np.ones(count, np.int64), list[_Offer]()
    for s in np.flatnonzero(is_cached.any(axis=0)).tolist():
        here = may_be & is_cached[:, s, None]  # [I, 6]
        offers.append(_Offer(_TABLE_WISE, s, every, here[:, _TABLE_WISE], here[:, _TABLE_WISE]))
        for k in _RANGES if here[:, _COLUMN_WISE].any() else ():
            possible = here[:, _COLUMN_WISE] & (k <= widest_split)
            offers.append(_Offer(_COLUMN_WISE, s, k * every, possible, possible & (k <= splits)))
        for kind in (_ROW_WISE, _TABLE_ROW_WISE, _GRID, _COPIES) if here[:, _ROW_WISE:].any() else ():
            possible = here[:, kind] & (allowed.all(axis=1) if _IS_EVERYWHERE[kind] else has_host)
            possible &= kind != _COPIES or s == 0
            sensible = possible & (num_devices > 1)
            if kind != _COPIES:
                blocks = num_devices if kind == _ROW_WISE else per_host
                sensible &= ~apart & (rows >= blocks) & (kind == _ROW_WISE or hosts > 1)
            if kind == _GRID:
                sensible &= in_grid > 1
                for k in _RANGES:
                    fewer = k < in_grid
                    offers.append(_Offer(kind, s, k * every, possible & fewer, sensible & fewer))
            offers.append(_Offer(kind, s, in_grid if kind == _GRID else every, possible, sensible))
    offers.sort(key=lambda offer: min(offer.kind, _ROW_WISE))
    in_parts = np.stack([offer.parts for offer in offers], axis=1)  # [I, C]
    runs = DIM_MULTIPLE * -(-dim[:, None] // DIM_MULTIPLE // in_parts) <= WIDEST_SHARD
    possible, sensible = np.stack([(offer.possible, offer.sensible) for offer in offers], axis=2) & runs  # [I, C]
    alike, spare = np.array([(offer.kind, offer.share) for offer in offers]), np.zeros_like(sensible)
    for same in (alike[:, None] == np.unique(alike, axis=0)).all(axis=2).T:  # [C]
        first = possible[:, same] & (possible[:, same].cumsum(axis=1) == 1)
        spare[:, same] = first & ~sensible[:, same].any(axis=1, keepdims=True)
    chosen = sensible | spare
    if model.narrowest <= DIM_MULTIPLE:  # it knows what narrow ranges cost
        spare[:, alike[:, 0] == _COLUMN_WISE] = False
    if not (has_option := chosen.any(axis=1)).all():
        i = has_option.argmin()
        name, limit = task.tables.names[table[i]], "the devices that it may use"
        if allowed[i].all():
            limit = f"its columns or cache, or {num_devices} devices in hosts of {per_host}"
        raise NoPlacementError(
            f"table {name!r} may only be sharded {' or '.join(constraints.sharding_types_for(name))}, against "
            f"{limit if dim[i] <= WIDEST_SHARD else f'the {WIDEST_SHARD} columns that fbgemm looks up'}; allow another type",
            is_strict=True,
        )
    of_item, offer = np.nonzero(chosen)
    kinds, of_share = alike[offer].T
    parts = in_parts[of_item, offer]
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    units, of_range = np.repeat(dim[of_item] // DIM_MULTIPLE, parts), np.repeat(parts, parts)
    start, end = (DIM_MULTIPLE * (units * (number + more) // of_range) for more in (0, 1))
    return _Fields(
        of_item, np.arange(len(offer)), spare[of_item, offer], kinds, shares[of_item, of_share], parts, start, end
    )


def _shard_loads(
    task: PlacementTask,
    model: CostModel,
    table: Ints,
    kind: Ints,
    block: Ints,
    blocks: Ints,
    width: Ints,
    share: Floats,
) -> tuple[Ints, Ints, Ints, NDArray[np.float64]]:
    """`[R]` number of each range's first block, step to the next one's, and bytes of a block; `[N, L]` loads by number.

    Ranges of equal width have the same numbers, and so have all blocks if lookups count as even over the rows.
    """
    alike = np.where(_IS_ON_DEVICE[kind], _TABLE_WISE, kind)
    shares, of_share = np.unique(share, return_inverse=True)
    sizes = int(width.max()) + 1, len(shares), len(SHARDING_TYPES), len(task.tables)
    key = np.ravel_multi_index((width, of_share, alike, table), sizes)
    _, where, number = np.unique(key, return_index=True, return_inverse=True)
    differ = (task.tables.block_share is not None) & (kind[where] != _COPIES) & (blocks[where] > 1)
    count = np.where(differ, blocks[where], 1)
    first, of_range = np.cumsum(count) - count, np.repeat(where, count)
    start = (np.arange(len(of_range)) - np.repeat(first, count)) * block[of_range]
    end = np.minimum(start + block[of_range], task.tables.rows.numpy()[table[of_range]])
    nothing = torch.zeros(len(of_range), dtype=torch.int64)
    shards = Shards(
        task,
        table=torch.from_numpy(table[of_range]),
        device=nothing,
        sharding_type=torch.from_numpy(alike[of_range]),
        rows=torch.from_numpy(np.stack([start, end], axis=1)),
        columns=torch.stack([nothing, torch.from_numpy(width[of_range])], dim=1),
        cached_share=torch.from_numpy(share[of_range]),
        devices_per_host=model.devices_per_host,
    )
    size = np.maximum.reduceat(shards.device_bytes.numpy(), first)  # of the largest block
    return first[number], differ[number].astype(np.int64), size[number], model.loads(shards)
