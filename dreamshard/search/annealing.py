"""One compiled search: simulated annealing over how each table is sharded and where its shards are.

A table takes one of its *options*: whole, in so many ranges of columns, as blocks of rows or copies on every device, or as
blocks on every device of a host. A change moves a range, swaps two, or gives a table another option. Loads of devices are
sums over their shards, so that the exact cost after a change needs the changed devices only.

Half of the changes take a range off the slowest or the widest device, because only these delay the others. The temperature
falls geometrically. A small share of the devices' squared costs is added to the overall cost: it guides the search on
plateaus, where several devices tie. The best state seen is returned, so the result never costs more than the start.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    COPIES,
    HOSTS,
    ROWS,
    DeviceLaw,
    Floats,
    Ints,
    curve_ms,
    device_ms,
    jit,
)

ON_DEVICES, ON_ALL, ON_HOST = 0, 1, 2
"""Where the shards of an option are: each range on a device, on all devices, or on all devices of a host."""

HOT, _COLD = 2e-2, 1e-4
"""First and last temperature, as shares of the start's cost."""
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
    """The options of `T` tables on `D` devices; option `o` of table `t` is one of `first_option[t] ..
    first_option[t+1]`.

    Attributes:
        first_option: `[T+1]`.
        last_option: `[T]` the end (exclusive) of those that the search may take.
        spread: `[O]` one of `ON_DEVICES`, `ON_ALL`, `ON_HOST`.
        first_range: `[O+1]` ranges of columns of an option.
        load: `[R]` row of `loads` of a range's shard on a device.
        last_load: `[R]` the same of its last block of rows, which may be smaller.
        blocks: `[R]` devices that have a block of it.
        size: `[R]` bytes of the shard; `last_size` of the last block.
        host_dims: `[R]` columns that exchanges within and between hosts carry.
        row_dims: `[O]` columns that exchanges of row-wise tables carry.
        copy_bytes: `[O]` of gradients that the all-reduce carries.
        loads: `[N, L]`.
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
    host_dims: Floats
    row_dims: Floats
    copy_bytes: Floats
    loads: Floats
    allowed: NDArray[np.bool_]
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
        host_dims: `[H]`.
        totals: widths, dims of row-wise tables, bytes of copies, price, and by how much devices are overfull.
        head: `[D]` first range of each device, a number `t * K + r`; -1 for none.
        after: `[T K]` the next one on the same device; `before` the one before.
        held_ranges: `[D]` ranges on each device.
    """

    option: Ints
    place: Ints
    sums: Floats
    used: Ints
    own_ms: Floats
    held: Ints
    host_dims: Floats
    totals: Floats
    head: Ints
    after: Ints
    before: Ints
    held_ranges: Ints


_WIDTH, _ROW_DIMS, _COPY_BYTES, _PRICE, _OVERFULL = range(5)


def empty_state(menu: Menu) -> State:
    """All tables nowhere."""
    num_tables, num_devices = menu.allowed.shape
    ranges = int(np.diff(menu.first_range).max())
    hosts = -(-num_devices // menu.per_host)
    return State(
        option=np.full(num_tables, -1),
        place=np.full((num_tables, ranges), -1),
        sums=np.zeros((num_devices, menu.loads.shape[1])),
        used=np.zeros(num_devices, np.int64),
        own_ms=np.zeros(num_devices),
        held=np.zeros((menu.num_groups, num_devices), np.int64),
        host_dims=np.zeros(hosts),
        totals=np.zeros(5),
        head=np.full(num_devices, -1),
        after=np.full(num_tables * ranges, -1),
        before=np.full(num_tables * ranges, -1),
        held_ranges=np.zeros(num_devices, np.int64),
    )


@jit
def _first_device(menu: Menu, spread: int, place: int) -> int:
    if spread == ON_DEVICES:
        return place
    return 0 if spread == ON_ALL else place * menu.per_host


@jit
def _overfull(menu: Menu, device: int, used: int) -> float:
    """Bytes above a device's capacity, as a share of it."""
    return max(used - menu.capacity[device], 0) / max(menu.capacity[device], 1)


@jit
def _add_range(
    menu: Menu, law: DeviceLaw, state: State, table: int, r: int, option: int, place: int, sign: int
) -> None:
    """Put a range of a table on `place`, or with `sign` -1 take it away; `own_ms` is left to the caller."""
    number = menu.first_range[option] + r
    spread, blocks = menu.spread[option], menu.blocks[number]
    first = _first_device(menu, spread, place)
    for b in range(blocks):
        device = first + b
        last = b == blocks - 1
        row = menu.last_load[number] if last else menu.load[number]
        for column in range(menu.loads.shape[1]):
            state.sums[device, column] += sign * menu.loads[row, column]
        before = _overfull(menu, device, state.used[device])
        state.used[device] += sign * (menu.last_size[number] if last else menu.size[number])
        state.totals[_OVERFULL] += _overfull(menu, device, state.used[device]) - before
        state.totals[_WIDTH] += sign * menu.loads[row, law.width]
    if spread == ON_HOST:
        state.host_dims[place] += sign * menu.host_dims[number]
    if len(menu.price_ms):
        state.totals[_PRICE] += sign * menu.price_ms[number, place if spread != ON_ALL else 0]
    slot = table * state.place.shape[1] + r
    if sign > 0:
        state.place[table, r] = place
    else:
        state.place[table, r] = -1
    if spread == ON_DEVICES:
        for g in range(menu.first_group[table], menu.first_group[table + 1]):
            state.held[menu.groups[g], place] += sign
        state.held_ranges[place] += sign
        if sign > 0:
            first_slot = state.head[place]
            state.after[slot], state.before[slot] = first_slot, -1
            if first_slot >= 0:
                state.before[first_slot] = slot
            state.head[place] = slot
        else:
            following, previous = state.after[slot], state.before[slot]
            if following >= 0:
                state.before[following] = previous
            if previous >= 0:
                state.after[previous] = following
            else:
                state.head[place] = following


@jit
def _add_option(menu: Menu, state: State, table: int, option: int, sign: int) -> None:
    """Count what collectives carry of a table with this option."""
    state.totals[_ROW_DIMS] += sign * menu.row_dims[option]
    state.totals[_COPY_BYTES] += sign * menu.copy_bytes[option]
    state.option[table] = option if sign > 0 else -1


@jit
def put(menu: Menu, law: DeviceLaw, state: State, table: int, option: int, places: Ints) -> None:
    """Shard a table that is nowhere yet; the costs of devices are left to `settle`."""
    for r in range(menu.first_range[option + 1] - menu.first_range[option]):
        _add_range(menu, law, state, table, r, option, places[r], 1)
    _add_option(menu, state, table, option, 1)


@jit
def take(menu: Menu, law: DeviceLaw, state: State, table: int) -> None:
    """Take a table from where it is; the costs of devices are left to `settle`."""
    option = state.option[table]
    for r in range(menu.first_range[option + 1] - menu.first_range[option]):
        _add_range(menu, law, state, table, r, option, state.place[table, r], -1)
    _add_option(menu, state, table, option, -1)


@jit
def settle(law: DeviceLaw, state: State) -> None:
    """Compute what every device costs on its own."""
    for d in range(len(state.own_ms)):
        state.own_ms[d] = device_ms(law, state.sums[d])


@jit
def overall_ms(law: DeviceLaw, state: State) -> float:
    """Cost of the slowest device, and of what all wait for; without the price."""
    slowest, widest = state.own_ms[0], state.sums[0, law.width]
    for d in range(1, len(state.own_ms)):
        slowest = max(slowest, state.own_ms[d])
        widest = max(widest, state.sums[d, law.width])
    return slowest + _waits_ms(law, state, widest)


@jit
def _waits_ms(law: DeviceLaw, state: State, widest: float) -> float:
    """What all devices wait for, where the widest one is as wide as given."""
    busiest = 0.0
    for h in range(len(state.host_dims)):
        busiest = max(busiest, state.host_dims[h])
    waits = law.fixed_ms + law.total_ms * state.totals[_WIDTH] + curve_ms(law.curves, ALL_TO_ALL, widest)
    waits += curve_ms(law.curves, ROWS, state.totals[_ROW_DIMS]) + curve_ms(
        law.curves, COPIES, state.totals[_COPY_BYTES]
    )
    return waits + curve_ms(law.curves, HOSTS, busiest)


@jit
def may_hold(menu: Menu, state: State, table: int, device: int, leaving: int) -> bool:
    """Whether a range of the table may be there, memory aside; one of a table `leaving` does not keep it away."""
    if not menu.allowed[table, device]:
        return False
    for g in range(menu.first_group[table], menu.first_group[table + 1]):
        others = state.held[menu.groups[g], device]
        for r in range(state.place.shape[1]):
            others -= state.place[table, r] == device
        if leaving >= 0:
            others -= _in_group(menu, leaving, menu.groups[g])
        if others > 0:
            return False
    return True


@jit
def _in_group(menu: Menu, table: int, group: int) -> bool:
    for g in range(menu.first_group[table], menu.first_group[table + 1]):  # noqa: SIM110 - compiled code has no any()
        if menu.groups[g] == group:
            return True
    return False


@jit
def host_allowed(menu: Menu, table: int, host: int) -> bool:
    """Whether a table may be on all devices of a host, memory aside."""
    for d in range(host * menu.per_host, (host + 1) * menu.per_host):  # noqa: SIM110 - compiled code has no all()
        if not menu.allowed[table, d]:
            return False
    return True


@jit
def _nth_of(state: State, device: int, part: float) -> int:
    """A range on a device, by a random number."""
    slot = state.head[device]
    for _ in range(int(part * state.held_ranges[device])):
        slot = state.after[slot]
    return slot


@jit
def _quick_device(state: State, first: float, second: float) -> int:
    """The faster of two random devices."""
    num_devices = len(state.own_ms)
    a, b = int(first * num_devices), int(second * num_devices)
    return a if state.own_ms[a] <= state.own_ms[b] else b


@jit
def _energy(law: DeviceLaw, state: State, squares: float, reference: float) -> float:
    fixed = state.totals[_PRICE] + _OVERFULL_WEIGHT * reference * state.totals[_OVERFULL]
    return overall_ms(law, state) + fixed + _EVENNESS * squares / (len(state.own_ms) * reference)


@jit
def _uneven(own_ms: float, width: float, ms_per_width: float) -> float:
    """What a device adds to the unevenness: its squared cost, and that of its all-to-all if it were the widest."""
    return own_ms**2 + (ms_per_width * width) ** 2


@jit
def _find_leaders(law: DeviceLaw, state: State, leaders: Ints) -> None:
    """The three slowest devices, and the three widest: whatever two devices change, one of each three stays."""
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


@jit
def _exchange(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    slot: int,
    other: int,
    device: int,
    target: int,
    leaders: Ints,
    buffer: Floats,
    energy: float,
    squares: float,
    threshold: float,
    reference: float,
    ms_per_width: float,
) -> tuple[bool, float, float]:
    """Move a range from `device` to `target`, and another one back if `other` is not negative, if that pays.

    Returns:
        Whether it did, the energy, and the sum of `_uneven`.
    """
    width, column = state.place.shape[1], law.width
    table, r = slot // width, slot % width
    number = menu.first_range[state.option[table]] + r
    grown, row, back = menu.size[number], menu.load[number], -1
    price = 0.0
    if len(menu.price_ms):
        price = menu.price_ms[number, target] - menu.price_ms[number, device]
    if other >= 0:
        other_number = menu.first_range[state.option[other // width]] + other % width
        back = menu.load[other_number]
        grown -= menu.size[other_number]
        if len(menu.price_ms):
            price += menu.price_ms[other_number, device] - menu.price_ms[other_number, target]
        if not may_hold(menu, state, other // width, device, table):
            return False, energy, squares
    over_device = _overfull(menu, device, state.used[device] - grown)
    over_target = _overfull(menu, target, state.used[target] + grown)
    if over_device > _MOST_OVERFULL or over_target > _MOST_OVERFULL:
        return False, energy, squares
    overfull = state.totals[_OVERFULL] + over_device + over_target
    overfull -= _overfull(menu, device, state.used[device]) + _overfull(menu, target, state.used[target])
    if not may_hold(menu, state, table, target, other // width if other >= 0 else -1):
        return False, energy, squares
    for c in range(menu.loads.shape[1]):
        change = menu.loads[row, c] - (menu.loads[back, c] if back >= 0 else 0.0)
        buffer[0, c] = state.sums[device, c] - change
        buffer[1, c] = state.sums[target, c] + change
    slowest, widest = 0.0, max(buffer[0, column], buffer[1, column])
    for i in range(3):
        d = leaders[0, i]
        if d >= 0 and d != device and d != target:
            slowest = state.own_ms[d]
            break
    for i in range(3):
        d = leaders[1, i]
        if d >= 0 and d != device and d != target:
            widest = max(widest, state.sums[d, column])
            break
    waits = _waits_ms(law, state, widest) + state.totals[_PRICE] + price + _OVERFULL_WEIGHT * reference * overfull
    weight = _EVENNESS / (len(state.own_ms) * reference)
    target_ms = device_ms(law, buffer[1])
    slowest = max(slowest, target_ms)
    squares_after = squares + _uneven(target_ms, buffer[1, column], ms_per_width)
    for d in (device, target):
        squares_after -= _uneven(state.own_ms[d], state.sums[d, column], ms_per_width)
    if slowest + waits + weight * squares_after >= threshold:  # whatever the other device costs
        return False, energy, squares
    device_after_ms = device_ms(law, buffer[0])
    squares_after += _uneven(device_after_ms, buffer[0, column], ms_per_width)
    energy_after = max(slowest, device_after_ms) + waits + weight * squares_after
    if energy_after >= threshold:
        return False, energy, squares
    _add_range(menu, law, state, table, r, state.option[table], device, -1)
    if other >= 0:
        _add_range(menu, law, state, other // width, other % width, state.option[other // width], target, -1)
        _add_range(menu, law, state, other // width, other % width, state.option[other // width], device, 1)
    _add_range(menu, law, state, table, r, state.option[table], target, 1)
    state.sums[device], state.sums[target] = buffer[0], buffer[1]
    state.own_ms[device], state.own_ms[target] = device_after_ms, target_ms
    return True, energy_after, squares_after


@jit
def _reshard(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    table: int,
    option: int,
    places: Ints,
    touched: Ints,
    marks: NDArray[np.bool_],
    kept_sums: Floats,
    kept_used: Ints,
    kept_own: Floats,
    energy: float,
    squares: float,
    threshold: float,
    reference: float,
    ms_per_width: float,
) -> tuple[bool, float, float]:
    """Give a table another option, or other places, if that pays; returns as `_exchange`."""
    old, count, column = state.option[table], 0, law.width
    old_count = menu.first_range[old + 1] - menu.first_range[old]
    new_count = menu.first_range[option + 1] - menu.first_range[option]
    if menu.spread[option] != ON_DEVICES or menu.spread[old] != ON_DEVICES:
        for d in range(len(state.own_ms)):
            touched[d] = d
        count = len(state.own_ms)
    else:
        for i in range(old_count + new_count):
            d = state.place[table, i] if i < old_count else places[i - old_count]
            if not marks[d]:
                marks[d], touched[count] = True, d
                count += 1
    totals, old_places, old_hosts = state.totals.copy(), state.place[table].copy(), state.host_dims.copy()
    for i in range(count):
        d = touched[i]
        marks[d] = False
        kept_sums[i], kept_used[i], kept_own[i] = state.sums[d], state.used[d], state.own_ms[d]
    legal = True
    for r in range(old_count):
        _add_range(menu, law, state, table, r, old, old_places[r], -1)
    _add_option(menu, state, table, old, -1)
    for r in range(new_count):
        if menu.spread[option] == ON_DEVICES:
            legal = legal and may_hold(menu, state, table, places[r], -1)
        _add_range(menu, law, state, table, r, option, places[r], 1)
    _add_option(menu, state, table, option, 1)
    for i in range(count):
        d = touched[i]
        legal = legal and _overfull(menu, d, state.used[d]) <= _MOST_OVERFULL
    if legal:
        squares_after = squares
        for i in range(count):
            d = touched[i]
            squares_after -= _uneven(kept_own[i], kept_sums[i, column], ms_per_width)
            state.own_ms[d] = device_ms(law, state.sums[d])
            squares_after += _uneven(state.own_ms[d], state.sums[d, column], ms_per_width)
        energy_after = _energy(law, state, squares_after, reference)
        if energy_after < threshold:
            return True, energy_after, squares_after
    for r in range(new_count):
        _add_range(menu, law, state, table, r, option, places[r], -1)
    _add_option(menu, state, table, option, -1)
    for r in range(old_count):
        _add_range(menu, law, state, table, r, old, old_places[r], 1)
    _add_option(menu, state, table, old, 1)
    for i in range(count):  # exactly as it was, without rounding errors
        d = touched[i]
        state.sums[d], state.used[d], state.own_ms[d] = kept_sums[i], kept_used[i], kept_own[i]
    state.totals[:], state.host_dims[:] = totals, old_hosts
    return False, energy, squares


@jit
def _least_loaded(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    table: int,
    option: int,
    places: Ints,
    ms_per_width: float,
    row_ms: Floats,
    marks: NDArray[np.bool_],
    part: float,
) -> None:
    """Devices for the ranges of an option: the least loaded without the table, the first of them by a random number."""
    num_devices, old = len(state.own_ms), state.option[table]
    count = menu.first_range[option + 1] - menu.first_range[option]
    chance = part
    for k in range(count):
        best, least = 0, np.inf
        if k == 0 and chance < 0.5:
            best = int(2 * chance * num_devices)
        else:
            for d in range(num_devices):
                if marks[d] and num_devices >= count:
                    continue
                load = state.own_ms[d] + ms_per_width * state.sums[d, law.width]
                if menu.spread[old] == ON_DEVICES:
                    for r in range(menu.first_range[old + 1] - menu.first_range[old]):
                        if state.place[table, r] == d:
                            load -= row_ms[menu.load[menu.first_range[old] + r]]
                if load < least:
                    best, least = d, load
        places[k], marks[best] = best, True
    for k in range(count):
        marks[places[k]] = False


@jit
def _has_room(menu: Menu, state: State) -> bool:
    for d in range(len(state.used)):  # noqa: SIM110 - compiled code has no all()
        if state.used[d] > menu.capacity[d]:
            return False
    return True


@jit
def _anneal(
    menu: Menu,
    law: DeviceLaw,
    state: State,
    best_option: Ints,
    best_place: Ints,
    best: float,
    draws: Floats,
    first: int,
    total: int,
    reference: float,
    hot: float,
    cold: float,
    option_share: float,
    by_width: Ints,
    rank: Ints,
    row_ms: Floats,
) -> float:
    """Take or leave one change per row of `draws`; returns the lowest cost seen, whose state is in `best_*`."""
    num_tables, num_devices = menu.allowed.shape
    width = state.place.shape[1]
    touched, marks = np.zeros(num_devices, np.int64), np.zeros(num_devices, np.bool_)
    kept_sums = np.zeros((num_devices, state.sums.shape[1]))
    kept_used, kept_own = np.zeros(num_devices, np.int64), np.zeros(num_devices)
    buffer = np.zeros((2, state.sums.shape[1]))
    new_places = np.zeros(width, np.int64)
    widest_width, squares = 0.0, 0.0
    for d in range(num_devices):
        widest_width = max(widest_width, state.sums[d, law.width])
    ms_per_width = curve_ms(law.curves, ALL_TO_ALL, widest_width) / max(widest_width, 1e-9)
    for d in range(num_devices):
        squares += _uneven(state.own_ms[d], state.sums[d, law.width], ms_per_width)
    energy = _energy(law, state, squares, reference)
    leaders, stale = np.zeros((2, 3), np.int64), True
    temperature, decay = hot * (cold / hot) ** (first / total), (cold / hot) ** (1 / total)
    changed, is_changed = np.arange(num_tables), np.ones(num_tables, np.bool_)  # since the best state was kept
    num_changed = num_tables
    for i in range(len(draws)):
        u = draws[i]
        if stale:
            _find_leaders(law, state, leaders)
            stale = False
        temperature *= decay
        threshold = energy - temperature * reference * math.log(max(u[0], 1e-300))
        source = leaders[0, 0] if u[1] < _SLOWEST else (leaders[1, 0] if u[1] < _WIDEST else -1)
        slot = -1
        if source >= 0 and state.held_ranges[source] > 0:
            slot = _nth_of(state, source, u[2])
            t, r = slot // width, slot % width
        else:
            t = int(u[2] * num_tables)
            option = state.option[t]
            r = int(u[3] * (menu.first_range[option + 1] - menu.first_range[option]))
        old = state.option[t]
        options = menu.last_option[t] - menu.first_option[t]
        accepted, other = False, -1
        if options > 1 and (menu.spread[old] != ON_DEVICES or u[4] < option_share):
            new = menu.first_option[t] + int(u[5] * options)
            if menu.spread[new] != ON_DEVICES or menu.spread[old] != ON_DEVICES:
                chance = u[4] if menu.spread[old] != ON_DEVICES else u[4] / option_share
                if chance * num_devices > _SPREAD_CHANGES:
                    continue
            elif new == old:
                continue
            count = menu.first_range[new + 1] - menu.first_range[new]
            fits = True
            if menu.spread[new] == ON_HOST:
                hosts = num_devices // menu.per_host
                begin = int(u[6] * hosts)
                second = int(u[7] * hosts)
                if state.host_dims[second] < state.host_dims[begin]:
                    begin = second
                for k in range(count):
                    new_places[k] = (begin + k) % hosts
                    fits = fits and host_allowed(menu, t, new_places[k])
            elif menu.spread[new] == ON_ALL:
                new_places[0] = 0
            else:
                _least_loaded(menu, law, state, t, new, new_places, ms_per_width, row_ms, marks, u[3])
            if fits:
                accepted, energy, squares = _reshard(
                    menu, law, state, t, new, new_places, touched, marks, kept_sums, kept_used, kept_own,
                    energy, squares, threshold, reference, ms_per_width,
                )  # fmt: skip
        elif menu.spread[old] == ON_DEVICES:
            device, swap = state.place[t, r], u[5] < 0.6
            if swap and u[4] < 0.5:  # for a table of about the same width and cost
                position = rank[t] + int((2 * u[7] - 1) * (_NEAR + 1))
                near = by_width[min(max(position, 0), num_tables - 1)]
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
            accepted, energy, squares = _exchange(
                menu,
                law,
                state,
                t * width + r,
                other,
                device,
                target,
                leaders,
                buffer,
                energy,
                squares,
                threshold,
                reference,
                ms_per_width,
            )
        elif menu.spread[old] == ON_HOST:
            hosts = num_devices // menu.per_host
            target = int(u[6] * hosts)
            if target != state.place[t, 0] and host_allowed(menu, t, target):
                count = menu.first_range[old + 1] - menu.first_range[old]
                for k in range(count):
                    new_places[k] = (target + k) % hosts
                accepted, energy, squares = _reshard(
                    menu, law, state, t, old, new_places, touched, marks, kept_sums, kept_used, kept_own,
                    energy, squares, threshold, reference, ms_per_width,
                )  # fmt: skip
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


def total_ms(law: DeviceLaw, state: State) -> float:
    """Cost of a state, price included."""
    return float(overall_ms(law, state) + state.totals[_PRICE])


def cost_of(menu: Menu, law: DeviceLaw, option: Ints, place: Ints) -> float:
    """Cost of a placement, price included."""
    return total_ms(law, state_of(menu, law, option, place))


def anneal(menu: Menu, law: DeviceLaw, start: Found, moves: int, seed: int = 0, hot: float = HOT) -> Found:
    """The best placement that `moves` changes of a legal start visit; never costs more than the start."""
    generator = np.random.default_rng(seed)
    option, place = start.option.copy(), start.place.copy()
    best = reference = start.cost_ms
    rows = menu.load[menu.first_range[menu.first_option[:-1]]]
    by_width = np.lexsort((alone_ms(menu, law), menu.loads[rows, law.width]))
    share = _OPTION_SHARE if bool((menu.last_option - menu.first_option[:-1] > 1).any()) else 0.0
    rank = np.argsort(by_width)
    row_ms = _alone(law, menu.loads, np.arange(len(menu.loads)))
    state = state_of(menu, law, option, place)
    for first in range(0, moves, _BLOCK):
        draws = generator.random((min(_BLOCK, moves - first), _DRAWS))
        best = _anneal(
            menu,
            law,
            state,
            option,
            place,
            best,
            draws,
            first,
            moves,
            reference,
            hot,
            _COLD,
            share,
            by_width,
            rank,
            row_ms,
        )
    return Found(option, place, best)


def alone_ms(menu: Menu, law: DeviceLaw) -> Floats:
    """`[T]` what a device with one table costs, by the first of its options, its all-to-all included."""
    first = menu.first_range[menu.first_option[:-1]]
    return _alone(law, menu.loads, menu.load[first])


@jit
def _alone(law: DeviceLaw, loads: Floats, rows: Ints) -> Floats:
    costs = np.zeros(len(rows))
    for i in range(len(rows)):
        costs[i] = device_ms(law, loads[rows[i]]) + curve_ms(law.curves, ALL_TO_ALL, loads[rows[i], law.width])
    return costs


def priced(menu: Menu, law: DeviceLaw, option: Ints, place: Ints) -> Found | None:
    """A placement with its cost; None if it is not legal."""
    state = state_of(menu, law, option, place)
    if not _is_legal(menu, state):
        return None
    return Found(option, place, total_ms(law, state))


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
