"""One compiled search: simulated annealing over how each table is sharded and where its shards are.

A table takes one of its *options*: whole, in so many ranges of columns, as blocks of rows or copies on every device, or as
blocks on every device of a host. A change moves a range, swaps two, or gives a table another option. Loads of devices are
sums over their shards, so that the exact cost after a change needs the changed devices only.

Most changes take a range off the slowest or the widest device, because only these delay the others. The temperature falls
geometrically. A small share of the devices' squared costs is added to the overall cost: it guides the search on plateaus,
where several devices tie. The best state seen is returned, so the result never costs more than the start.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    NUM_CURVES,
    TRAFFIC,
    DeviceLaw,
    Floats,
    Ints,
    curve_ms,
    device_ms,
    inlined,
    jit,
)

Mask = NDArray[np.bool_]

ON_DEVICES, ON_ALL, ON_HOST = 0, 1, 2
"""Where the shards of an option are: each range on a device, on all devices, or on all devices of a host."""

_HOT, _COLD = 2e-2, 1e-4  # first and last temperature, as shares of the start's cost
_EVENNESS = 0.1  # weight of the devices' mean squared cost beside the overall cost
_OVERFULL_WEIGHT = 2.0  # of the start's cost, for a device with twice the tables that it has room for
_MOST_OVERFULL = 0.05  # of a device's capacity, on the way from one legal placement to another
_SLOWEST, _WIDEST = 0.45, 0.9  # cumulative shares of the changes that take a range off these devices
_BLOCK = 1 << 16  # changes whose random numbers are drawn at once
_DRAWS = 8  # random numbers of a change
_NEAR = 8  # tables of nearly the same width and cost, of which one is swapped for
_SPREAD_CHANGES = 8  # of so many as there are devices are tried, since each changes all devices
_OPTION_SHARE = 0.25  # of the changes, where tables have several options


class Menu(NamedTuple):
    """The options of `T` tables on `D` devices; table `t` has `first_option[t] .. first_option[t+1]`.

    Attributes:
        first_option: `[T+1]`.
        last_option: `[T]` the end (exclusive) of those that the search may take.
        spread: `[O]` one of `ON_DEVICES`, `ON_ALL`, `ON_HOST`.
        first_range: `[O+1]` ranges of columns of an option.
        load: `[R]` row of `loads` of a range's shard on a device.
        last_load: `[R]` the same of its last block of rows, which may be smaller.
        blocks: `[R]` devices that have a block of it.
        size: `[R]` bytes of the shard.
        last_size: `[R]` the same of the last block.
        loads: `[N, L]` by `CostModel.loads`.
        allowed: `[T, D]`.
        first_group: `[T+1]` groups of tables to be kept apart that a table is in.
        groups: their numbers.
        num_groups: `G`.
        capacity: `[D]` bytes.
        per_host: devices of a host.
        price_ms: `[R, D]` of having a range on a device, or host; without rows if nothing has a price.
    """

    first_option: Ints
    last_option: Ints
    spread: Ints
    first_range: Ints
    load: Ints
    last_load: Ints
    blocks: Ints
    size: Ints
    last_size: Ints
    loads: Floats
    allowed: Mask
    first_group: Ints
    groups: Ints
    num_groups: int
    capacity: Ints
    per_host: int
    price_ms: Floats


class State(NamedTuple):
    """A placement as sums; changed in place.

    Attributes:
        option: `[T]`; -1 for a table that is nowhere yet.
        place: `[T, K]` device or host of each range.
        sums: `[D, L]`.
        used: `[D]` bytes.
        own_ms: `[D]` see `device_ms`.
        held: `[G, D]` ranges of each group on each device.
        totals: `[6]` see below.
        head: `[D]` first range of each device, a number `t * K + r`; -1 for none.
        after: `[T K]` the next one on the same device.
        before: `[T K]` the one before.
        held_ranges: `[D]` ranges on each device.
    """

    option: Ints
    place: Ints
    sums: Floats
    used: Ints
    own_ms: Floats
    held: Ints
    totals: Floats
    head: Ints
    after: Ints
    before: Ints
    held_ranges: Ints


_WIDTH, _SPREAD_MS, _PRICE, _OVERFULL, _SQUARES, _ENERGY = range(6)
"""All widths, milliseconds of the collectives of spread tables, price, by how much devices are overfull, and what the search
minimises: the sum of `_uneven`, and the energy."""


class Search(NamedTuple):
    """What a search needs besides: scales, orders of the tables, and room for single changes.

    Attributes:
        reference: cost of the start.
        ms_per_width: of the all-to-all.
        option_share: of the changes that try another option.
        by_width: `[T]` tables by width and cost; `rank` `[T]` is its inverse.
        row_ms: `[N]` of each row of `loads` on a device of its own.
        leaders: `[2, 3]` the three slowest devices, and the three widest: two change, so one of each stays.
        buffer: `[2, L]` sums of two changed devices.
        touched: `[D]` changed devices; `kept_ms` `[D]` their costs before.
        marks: `[D]`.
        places: `[K]` of a table with another option; `old_places` `[K]` before.
    """

    reference: float
    ms_per_width: float
    option_share: float
    by_width: Ints
    rank: Ints
    row_ms: Floats
    leaders: Ints
    buffer: Floats
    touched: Ints
    kept_ms: Floats
    marks: Mask
    places: Ints
    old_places: Ints


def empty_state(menu: Menu) -> State:
    """All tables nowhere."""
    num_tables, num_devices = menu.allowed.shape
    ranges = int(np.diff(menu.first_range).max())
    return State(
        option=np.full(num_tables, -1),
        place=np.full((num_tables, ranges), -1),
        sums=np.zeros((num_devices, menu.loads.shape[1])),
        used=np.zeros(num_devices, np.int64),
        own_ms=np.zeros(num_devices),
        held=np.zeros((menu.num_groups, num_devices), np.int64),
        totals=np.zeros(6),
        head=np.full(num_devices, -1),
        after=np.full(num_tables * ranges, -1),
        before=np.full(num_tables * ranges, -1),
        held_ranges=np.zeros(num_devices, np.int64),
    )


@inlined
def _overfull(menu: Menu, device: int, used: int) -> float:
    """Bytes above a device's capacity, as a share of it."""
    return max(used - menu.capacity[device], 0) / max(menu.capacity[device], 1)


@inlined
def _add_range(
    menu: Menu, law: DeviceLaw, state: State, table: int, r: int, option: int, place: int, sign: int
) -> None:
    """Put a range of a table on `place`, or with `sign` -1 take it away; costs are left to the caller."""
    number, spread = menu.first_range[option] + r, menu.spread[option]
    first = place if spread == ON_DEVICES else (0 if spread == ON_ALL else place * menu.per_host)
    for b in range(menu.blocks[number]):
        device, last = first + b, b == menu.blocks[number] - 1
        row = menu.last_load[number] if last else menu.load[number]
        for column in range(menu.loads.shape[1]):
            state.sums[device, column] += sign * menu.loads[row, column]
        before = _overfull(menu, device, state.used[device])
        state.used[device] += sign * (menu.last_size[number] if last else menu.size[number])
        state.totals[_OVERFULL] += _overfull(menu, device, state.used[device]) - before
        state.totals[_WIDTH] += sign * menu.loads[row, law.width]
    if len(menu.price_ms):
        state.totals[_PRICE] += sign * menu.price_ms[number, place if spread != ON_ALL else 0]
    state.place[table, r] = place if sign > 0 else -1
    if spread != ON_DEVICES:
        return
    for g in range(menu.first_group[table], menu.first_group[table + 1]):
        state.held[menu.groups[g], place] += sign
    state.held_ranges[place] += sign
    slot = table * state.place.shape[1] + r
    if sign > 0:
        following, previous = state.head[place], -1
        state.after[slot], state.before[slot], state.head[place] = following, -1, slot
        if following >= 0:
            state.before[following] = slot
    else:
        following, previous = state.after[slot], state.before[slot]
        if following >= 0:
            state.before[following] = previous
        if previous >= 0:
            state.after[previous] = following
        else:
            state.head[place] = following


@jit
def put(menu: Menu, law: DeviceLaw, state: State, table: int, option: int, places: Ints) -> None:
    """Shard a table that is nowhere yet; costs are left to `settle`."""
    for r in range(menu.first_range[option + 1] - menu.first_range[option]):
        _add_range(menu, law, state, table, r, option, places[r], 1)
    state.option[table] = option


@jit
def _take(menu: Menu, law: DeviceLaw, state: State, table: int) -> None:
    """Take a table from where it is; costs are left to the caller."""
    option = state.option[table]
    for r in range(menu.first_range[option + 1] - menu.first_range[option]):
        _add_range(menu, law, state, table, r, option, state.place[table, r], -1)
    state.option[table] = -1


@jit
def settle(law: DeviceLaw, state: State) -> None:
    """Compute what every device costs on its own, and the collectives of spread tables."""
    for d in range(len(state.own_ms)):
        state.own_ms[d] = device_ms(law, state.sums[d])
    _settle_traffic(law, state)


@jit
def _settle_traffic(law: DeviceLaw, state: State) -> None:
    state.totals[_SPREAD_MS] = 0.0
    for kind in TRAFFIC:
        most = 0.0
        for d in range(len(state.own_ms)):
            most = max(most, state.sums[d, state.sums.shape[1] + kind - NUM_CURVES])
        state.totals[_SPREAD_MS] += curve_ms(law.curves, kind, most)


@jit
def overall_ms(law: DeviceLaw, state: State) -> float:
    """Cost of the slowest device, and of what all wait for; without the price."""
    slowest, widest = state.own_ms[0], state.sums[0, law.width]
    for d in range(1, len(state.own_ms)):
        slowest = max(slowest, state.own_ms[d])
        widest = max(widest, state.sums[d, law.width])
    return slowest + _waits_ms(law, state, widest)


@inlined
def _waits_ms(law: DeviceLaw, state: State, widest: float) -> float:
    """What all devices wait for, if the widest one is as wide as given."""
    waits = law.fixed_ms + law.total_ms * state.totals[_WIDTH] + curve_ms(law.curves, ALL_TO_ALL, widest)
    return waits + state.totals[_SPREAD_MS]


@inlined
def may_hold(menu: Menu, state: State, table: int, device: int, leaving: int) -> bool:
    """Whether a range of the table may be there, memory aside; one of a table `leaving` does not keep it away."""
    if not menu.allowed[table, device]:
        return False
    for g in range(menu.first_group[table], menu.first_group[table + 1]):
        others = state.held[menu.groups[g], device]
        for r in range(state.place.shape[1]):
            others -= state.place[table, r] == device
        for h in range(menu.first_group[leaving], menu.first_group[leaving + 1]) if leaving >= 0 else range(0):
            others -= menu.groups[h] == menu.groups[g]
        if others > 0:
            return False
    return True


@jit
def host_allowed(menu: Menu, table: int, host: int) -> bool:
    """Whether a table may be on all devices of a host, memory aside."""
    return bool(menu.allowed[table, host * menu.per_host : (host + 1) * menu.per_host].all())


@inlined
def _nth_of(state: State, device: int, part: float) -> int:
    """A range on a device, by a random number."""
    slot = state.head[device]
    for _ in range(int(part * state.held_ranges[device])):
        slot = state.after[slot]
    return slot


@inlined
def _quick_device(state: State, first: float, second: float) -> int:
    """The faster of two random devices."""
    num_devices = len(state.own_ms)
    a, b = int(first * num_devices), int(second * num_devices)
    return a if state.own_ms[a] <= state.own_ms[b] else b


@inlined
def _uneven(search: Search, own_ms: float, width: float) -> float:
    """What a device adds to the unevenness: its squared cost, and that of its all-to-all if it were the widest."""
    return own_ms**2 + (search.ms_per_width * width) ** 2


@inlined
def _energy(state: State, search: Search, cost_ms: float, squares: float, overfull: float) -> float:
    """What the search minimises; `cost_ms` includes the price."""
    weight = _EVENNESS / (len(state.own_ms) * search.reference)
    return cost_ms + _OVERFULL_WEIGHT * search.reference * overfull + weight * squares


@jit
def _begin(law: DeviceLaw, state: State, search: Search) -> None:
    """Compute the energy."""
    state.totals[_SQUARES] = 0.0
    for d in range(len(state.own_ms)):
        state.totals[_SQUARES] += _uneven(search, state.own_ms[d], state.sums[d, law.width])
    cost_ms = overall_ms(law, state) + state.totals[_PRICE]
    state.totals[_ENERGY] = _energy(state, search, cost_ms, state.totals[_SQUARES], state.totals[_OVERFULL])


@inlined
def _find_leaders(law: DeviceLaw, state: State, leaders: Ints) -> None:
    """The three slowest devices, and the three widest."""
    leaders[:] = -1
    for kind in range(2):
        for d in range(len(state.own_ms)):
            value = state.sums[d, law.width] if kind else state.own_ms[d]
            at = 3
            while at > 0:
                other = leaders[kind, at - 1]
                if other >= 0 and (state.sums[other, law.width] if kind else state.own_ms[other]) >= value:
                    break
                if at < 3:
                    leaders[kind, at] = other
                at -= 1
            if at < 3:
                leaders[kind, at] = d


@inlined
def _exchange(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    search: Search,
    slot: int,
    other: int,
    device: int,
    target: int,
    threshold: float,
) -> bool:
    """Move a range from `device` to `target`, and another one back if `other` is not negative, if that pays."""
    width, column, buffer = state.place.shape[1], law.width, search.buffer
    table, partner, back = slot // width, -1, -1
    number = menu.first_range[state.option[table]] + slot % width
    grown, row, price = menu.size[number], menu.load[number], 0.0
    if len(menu.price_ms):
        price = menu.price_ms[number, target] - menu.price_ms[number, device]
    if other >= 0:
        partner = other // width
        other_number = menu.first_range[state.option[partner]] + other % width
        back = menu.load[other_number]
        grown -= menu.size[other_number]
        if len(menu.price_ms):
            price += menu.price_ms[other_number, device] - menu.price_ms[other_number, target]
        if not may_hold(menu, state, partner, device, table):
            return False
    over_device = _overfull(menu, device, state.used[device] - grown)
    over_target = _overfull(menu, target, state.used[target] + grown)
    if over_device > _MOST_OVERFULL or over_target > _MOST_OVERFULL:
        return False
    overfull = state.totals[_OVERFULL] + over_device + over_target
    overfull -= _overfull(menu, device, state.used[device]) + _overfull(menu, target, state.used[target])
    if not may_hold(menu, state, table, target, partner):
        return False
    for c in range(menu.loads.shape[1]):
        change = menu.loads[row, c] - (menu.loads[back, c] if back >= 0 else 0.0)
        buffer[0, c] = state.sums[device, c] - change
        buffer[1, c] = state.sums[target, c] + change
    slowest, widest = 0.0, max(buffer[0, column], buffer[1, column])
    for i in range(3):
        d = search.leaders[0, i]
        if d >= 0 and d != device and d != target:
            slowest = state.own_ms[d]
            break
    for i in range(3):
        d = search.leaders[1, i]
        if d >= 0 and d != device and d != target:
            widest = max(widest, state.sums[d, column])
            break
    waits = _waits_ms(law, state, widest) + state.totals[_PRICE] + price
    target_ms = device_ms(law, buffer[1])
    slowest = max(slowest, target_ms)
    squares = state.totals[_SQUARES] + _uneven(search, target_ms, buffer[1, column])
    for d in (device, target):
        squares -= _uneven(search, state.own_ms[d], state.sums[d, column])
    if _energy(state, search, slowest + waits, squares, overfull) >= threshold:  # whatever the other device costs
        return False
    source_ms = device_ms(law, buffer[0])
    squares += _uneven(search, source_ms, buffer[0, column])
    energy = _energy(state, search, max(slowest, source_ms) + waits, squares, overfull)
    if energy >= threshold:
        return False
    _add_range(menu, law, state, table, slot % width, state.option[table], device, -1)
    if other >= 0:
        _add_range(menu, law, state, partner, other % width, state.option[partner], target, -1)
        _add_range(menu, law, state, partner, other % width, state.option[partner], device, 1)
    _add_range(menu, law, state, table, slot % width, state.option[table], target, 1)
    state.sums[device], state.sums[target] = buffer[0], buffer[1]
    state.own_ms[device], state.own_ms[target] = source_ms, target_ms
    state.totals[_SQUARES], state.totals[_ENERGY] = squares, energy
    return True


@jit
def _reshard(
    menu: Menu, law: DeviceLaw, state: State, search: Search, table: int, option: int, threshold: float
) -> bool:
    """Give a table another option, or other places, those of `search`, if that pays."""
    old, count, column = state.option[table], 0, law.width
    old_count = menu.first_range[old + 1] - menu.first_range[old]
    new_count = menu.first_range[option + 1] - menu.first_range[option]
    touched, kept_ms, is_spread = search.touched, search.kept_ms, False
    if menu.spread[option] != ON_DEVICES or menu.spread[old] != ON_DEVICES:
        is_spread, count = True, len(state.own_ms)
        for d in range(count):
            touched[d] = d
    else:
        for i in range(old_count + new_count):
            d = state.place[table, i] if i < old_count else search.places[i - old_count]
            if not search.marks[d]:
                search.marks[d], touched[count] = True, d
                count += 1
    legal, squares = True, state.totals[_SQUARES]
    search.old_places[:] = state.place[table]
    spread_ms = state.totals[_SPREAD_MS]
    for i in range(count):
        d = touched[i]
        search.marks[d], kept_ms[i] = False, state.own_ms[d]
        squares -= _uneven(search, state.own_ms[d], state.sums[d, column])
    _take(menu, law, state, table)
    if menu.spread[option] == ON_DEVICES:
        for r in range(new_count):
            legal = legal and may_hold(menu, state, table, search.places[r], -1)
    put(menu, law, state, table, option, search.places)
    for i in range(count):
        legal = legal and _overfull(menu, touched[i], state.used[touched[i]]) <= _MOST_OVERFULL
    if legal:
        for i in range(count):
            d = touched[i]
            state.own_ms[d] = device_ms(law, state.sums[d])
            squares += _uneven(search, state.own_ms[d], state.sums[d, column])
        if is_spread:
            _settle_traffic(law, state)
        cost_ms = overall_ms(law, state) + state.totals[_PRICE]
        energy = _energy(state, search, cost_ms, squares, state.totals[_OVERFULL])
        if energy < threshold:
            state.totals[_SQUARES], state.totals[_ENERGY] = squares, energy
            return True
    _take(menu, law, state, table)
    put(menu, law, state, table, old, search.old_places)
    for i in range(count):
        state.own_ms[touched[i]] = kept_ms[i]
    state.totals[_SPREAD_MS] = spread_ms
    return False


@jit
def _choose_places(
    menu: Menu, law: DeviceLaw, state: State, search: Search, table: int, option: int, draws: Floats
) -> bool:
    """Write places of the ranges of an option to `search`; whether the table may be there.

    On devices, the least loaded without the table, the first of them by a random number; on hosts, the less busy of two and
    those after it.
    """
    num_devices, old = len(state.own_ms), state.option[table]
    count = menu.first_range[option + 1] - menu.first_range[option]
    if menu.spread[option] == ON_ALL:
        search.places[0] = 0
        return True
    if menu.spread[option] == ON_HOST:
        hosts, busy = num_devices // menu.per_host, state.sums.shape[1] - 1
        begin, second, fits = int(draws[6] * hosts), int(draws[7] * hosts), True
        if state.sums[second * menu.per_host, busy] < state.sums[begin * menu.per_host, busy]:
            begin = second
        for k in range(count):
            search.places[k] = (begin + k) % hosts
            fits = fits and host_allowed(menu, table, search.places[k])
        return fits
    for k in range(count):
        best, least = 0, np.inf
        if k == 0 and draws[3] < 0.5:
            best = int(2 * draws[3] * num_devices)
        else:
            for d in range(num_devices):
                if search.marks[d] and num_devices >= count:
                    continue
                load = state.own_ms[d] + search.ms_per_width * state.sums[d, law.width]
                if menu.spread[old] == ON_DEVICES:
                    for r in range(menu.first_range[old + 1] - menu.first_range[old]):
                        if state.place[table, r] == d:
                            load -= search.row_ms[menu.load[menu.first_range[old] + r]]
                if load < least:
                    best, least = d, load
        search.places[k], search.marks[best] = best, True
    for k in range(count):
        search.marks[search.places[k]] = False
    return True


@jit
def _has_room(menu: Menu, state: State) -> bool:
    return bool((state.used <= menu.capacity).all())


@jit
def _anneal(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    search: Search,
    best_option: Ints,
    best_place: Ints,
    best: float,
    draws: Floats,
    temperature: float,
    decay: float,
) -> float:
    """Take or leave one change per row of `draws`; returns the lowest cost seen, whose state is in `best_*`."""
    num_tables, num_devices = menu.allowed.shape
    width = state.place.shape[1]
    changed, is_changed = np.arange(num_tables), np.ones(num_tables, np.bool_)  # since the best state was kept
    num_changed, stale = num_tables, True
    for i in range(len(draws)):
        u = draws[i]
        if stale:
            _find_leaders(law, state, search.leaders)
            stale = False
        temperature *= decay
        threshold = state.totals[_ENERGY] - temperature * search.reference * math.log(max(u[0], 1e-300))
        source = search.leaders[0, 0] if u[1] < _SLOWEST else (search.leaders[1, 0] if u[1] < _WIDEST else -1)
        if source >= 0 and state.held_ranges[source] > 0:
            slot = _nth_of(state, source, u[2])
            t, r = slot // width, slot % width
        else:
            t = int(u[2] * num_tables)
            r = int(u[3] * (menu.first_range[state.option[t] + 1] - menu.first_range[state.option[t]]))
        old = state.option[t]
        options = menu.last_option[t] - menu.first_option[t]
        accepted, other = False, -1
        if options > 1 and (menu.spread[old] != ON_DEVICES or u[4] < search.option_share):
            new = menu.first_option[t] + int(u[5] * options)
            if menu.spread[new] != ON_DEVICES or menu.spread[old] != ON_DEVICES:
                chance = u[4] if menu.spread[old] != ON_DEVICES else u[4] / search.option_share
                if chance * num_devices > _SPREAD_CHANGES:
                    continue
            elif new == old:
                continue
            if _choose_places(menu, law, state, search, t, new, u):
                accepted = _reshard(menu, law, state, search, t, new, threshold)
        elif menu.spread[old] == ON_DEVICES:
            device, swap = state.place[t, r], u[5] < 0.6
            if swap and u[4] < 0.5:  # for a table of about the same width and cost
                position = search.rank[t] + int((2 * u[7] - 1) * (_NEAR + 1))
                near = search.by_width[min(max(position, 0), num_tables - 1)]
                if menu.spread[state.option[near]] != ON_DEVICES:
                    continue
                other, target = near * width, state.place[near, 0]
            elif swap:
                target = int(u[6] * num_devices)
                if state.held_ranges[target] > 0:
                    other = _nth_of(state, target, u[7])
            else:
                target = _quick_device(state, u[6], u[7]) if u[4] < 0.5 else int(u[6] * num_devices)
            if target == device or (swap and (other < 0 or other // width == t)):
                continue
            accepted = _exchange(menu, law, state, search, t * width + r, other, device, target, threshold)
        elif menu.spread[old] == ON_HOST and _choose_places(menu, law, state, search, t, old, u):
            accepted = _reshard(menu, law, state, search, t, old, threshold)
        if accepted:
            stale = True
            for slot in (t * width, other):
                if slot >= 0 and not is_changed[slot // width]:
                    is_changed[slot // width], changed[num_changed] = True, slot // width
                    num_changed += 1
            cost = overall_ms(law, state) + state.totals[_PRICE]
            if cost < best and _has_room(menu, state):
                best = cost
                for j in range(num_changed):
                    t = changed[j]
                    best_option[t], best_place[t], is_changed[t] = state.option[t], state.place[t], False
                num_changed = 0
    return best


class Found(NamedTuple):
    """A placement of a menu: `[T]` options, `[T, K]` places and what it costs, price included."""

    option: Ints
    place: Ints
    cost_ms: float


def state_of(menu: Menu, law: DeviceLaw, option: Ints, place: Ints) -> State:
    """The state of a placement, from nothing."""
    state = empty_state(menu)
    _fill(menu, law, state, option, place)
    return state


@jit
def _fill(menu: Menu, law: DeviceLaw, state: State, option: Ints, place: Ints) -> None:
    for t in range(len(option)):
        put(menu, law, state, t, option[t], place[t])
    settle(law, state)


def found(law: DeviceLaw, state: State) -> Found:
    """The placement of a state."""
    return Found(state.option, state.place, float(overall_ms(law, state) + state.totals[_PRICE]))


def priced(menu: Menu, law: DeviceLaw, option: Ints, place: Ints) -> Found | None:
    """A placement with its cost; None if it is not legal."""
    state = state_of(menu, law, option, place)
    return found(law, state) if _is_legal(menu, state) else None


@jit
def _is_legal(menu: Menu, state: State) -> bool:
    if not _has_room(menu, state):
        return False
    for t in range(len(state.option)):
        option = state.option[t]
        if menu.spread[option] == ON_DEVICES:
            for r in range(menu.first_range[option + 1] - menu.first_range[option]):
                if not may_hold(menu, state, t, state.place[t, r], -1):
                    return False
    return True


def anneal(menu: Menu, law: DeviceLaw, start: Found, moves: int, seed: int = 0) -> Found:
    """The best placement that `moves` changes of a legal start visit; never costs more than the start."""
    generator, best = np.random.default_rng(seed), start.cost_ms
    option, place = start.option.copy(), start.place.copy()
    state, search = prepared(menu, law, start)
    decay = (_COLD / _HOT) ** (1 / max(moves, 1))
    for first in range(0, moves, _BLOCK):
        draws = generator.random((min(_BLOCK, moves - first), _DRAWS))
        temperature = _HOT * decay**first
        best = _anneal(menu, law, state, search, option, place, best, draws, temperature, decay)
    return Found(option, place, best)


def prepared(menu: Menu, law: DeviceLaw, start: Found) -> tuple[State, Search]:
    """The state of a start, and what its search needs besides."""
    state, num_devices = state_of(menu, law, start.option, start.place), len(menu.capacity)
    widest, ranges = float(state.sums[:, law.width].max()), state.place.shape[1]
    rows = menu.load[menu.first_range[menu.first_option[:-1]]]
    row_ms = _alone(law, menu.loads, np.arange(len(menu.loads)))
    by_width = np.lexsort((row_ms[rows], menu.loads[rows, law.width]))
    has_options = bool((menu.last_option - menu.first_option[:-1] > 1).any())
    search = Search(
        reference=start.cost_ms,
        ms_per_width=curve_ms(law.curves, ALL_TO_ALL, widest) / max(widest, 1e-9),
        option_share=_OPTION_SHARE if has_options else 0.0,
        by_width=by_width,
        rank=np.argsort(by_width),
        row_ms=row_ms,
        leaders=np.zeros((2, 3), np.int64),
        buffer=np.zeros((2, menu.loads.shape[1])),
        touched=np.zeros(num_devices, np.int64),
        kept_ms=np.zeros(num_devices),
        marks=np.zeros(num_devices, np.bool_),
        places=np.zeros(ranges, np.int64),
        old_places=np.zeros(ranges, np.int64),
    )
    _begin(law, state, search)
    return state, search


def alone_ms(menu: Menu, law: DeviceLaw) -> Floats:
    """`[T]` what a device with one table costs, by the first of its options, its all-to-all included."""
    return _alone(law, menu.loads, menu.load[menu.first_range[menu.first_option[:-1]]])


@jit
def _alone(law: DeviceLaw, loads: Floats, rows: Ints) -> Floats:
    costs = np.zeros(len(rows))
    for i in range(len(rows)):
        costs[i] = device_ms(law, loads[rows[i]]) + curve_ms(law.curves, ALL_TO_ALL, loads[rows[i], law.width])
    return costs
