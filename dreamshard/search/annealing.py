"""One compiled search: simulated annealing over how each table is sharded and where its shards are.

A table takes one of its *options*: whole, in so many ranges of columns, as blocks of rows or copies on every device, or as
blocks on every device of a host. A change moves a range, swaps two, or gives a table another option. Loads of devices are
sums over their shards, so that the exact cost after a change needs the changed devices only.

Most changes take a range off the slowest or the widest device, because mostly these delay the others. The temperature falls
geometrically. The cost is `DeviceCosts.overall_ms`, whose mean over errors is the logarithm of a sum of exponentials: exact
if one device is slow or all are equal. Every device that is nearly as slow as the slowest has a price that falls with the
temperature. The price guides the search among states whose slowest devices tie, and does not penalise even placements at the
end. The cheapest state is returned. If one table makes a device slow, many states cost the same: of these the one whose other
devices are fast, since a cost model errs.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    LEAST,
    NUM_CURVES,
    TRAFFIC,
    DeviceLaw,
    Floats,
    Ints,
    Mask,
    copy_into,
    curve_ms,
    device_ms,
    inlined,
    jit,
)

IsLate = Callable[[], bool]

ON_DEVICES, ON_ALL, ON_HOST = 0, 1, 2
"""Where the shards of an option are: each range on a device, on all devices, or on all devices of a host."""

_HOT, _COLD = 2e-2, 1e-4  # first and last temperature, as shares of the start's cost
EVENNESS = (1.0, 10.0)
"""Of a search: the price in temperatures of a device that is as slow as the slowest at the start, and a fifth of it if it is
10 % faster. Many small tables end better with a high one, a few that are hard to split with a low one."""
_TIE = 1e-6  # the same, in slowest devices' costs, when the best state is kept
_BUSIEST = 0.9  # share of the changes that take a range off the slowest device or, as often, the widest
_SWAP_ALIKE, _SWAP, _MOVE, _SHARD_OTHERWISE = range(4)
"""What a change does, all equally likely: swap a range with one of a table of nearly the same width and cost, with any, move
it, or give its table another option."""
CANDIDATES = 8
"""Like tables, ranges of a device, or devices, of which one is chosen, and how many changes of all devices are tried of as
many as there are devices. More would take longer."""
_UNWATCHED = 10_000  # changes between looks at the clock, which take up to some 50 ms


class Menu(NamedTuple):
    """The options of `T` tables on `D` devices; table `t` has `first_option[t] .. first_option[t+1]`.

    Attributes:
        first_option: `[T+1]`.
        last_option: `[T]` the end (exclusive) of those that the search may take.
        scope: `[O]` one of `ON_DEVICES`, `ON_ALL`, `ON_HOST`.
        first_range: `[O+1]` ranges of columns of an option.
        load: `[R]` row of `loads` of a range's shard on its first device; its last block of rows counts as full.
        step: `[R]` from there to the row of the next device's shard; 0 if all are alike.
        blocks: `[R]` devices that have a block of it.
        size: `[R]` bytes of the shard.
        law: of the devices.
        loads: `[N, L]` by `CostModel.loads`.
        row_ms: `[N]` cost of a device with each of the loads alone, its collectives included (`first_ms`).
        allowed: `[T, D]`.
        first_group: `[T+1]` groups of tables to be kept apart that a table is in.
        groups: their numbers.
        num_groups: `G`.
        capacity: `[D]` bytes.
        per_host: devices of a host.
        price_ms: `[R, D]` of having a range on a device, or host; without rows if nothing has a price.
        excess: share of the cost by which errors make the slowest of e equal devices slower than predicted.
    """

    first_option: Ints
    last_option: Ints
    scope: Ints
    first_range: Ints
    load: Ints
    step: Ints
    blocks: Ints
    size: Ints
    law: DeviceLaw
    loads: Floats
    row_ms: Floats
    allowed: Mask
    first_group: Ints
    groups: Ints
    num_groups: int
    capacity: Ints
    per_host: int
    price_ms: Floats
    excess: float

    @property
    def first_row(self) -> Ints:
        """`[T]` row of `loads` of each table's first option."""
        return self.load[self.first_range[self.first_option[:-1]]]

    @property
    def alone_ms(self) -> Floats:
        """`[T]` cost of a device with one table by the first of its options, its all-to-all included."""
        return self.row_ms[self.first_row]


class State(NamedTuple):
    """A placement as sums; changed in place.

    Attributes:
        option: `[T]`; -1 for a table that is nowhere yet.
        place: `[T, K]` device or host of each range; 0 on all devices, -1 for none.
        sums: `[D, L]`.
        used: `[D]` bytes.
        own_ms: `[D]` compute, and a device's own part of the all-to-all, with its wait for the device before it.
        held: `[G, D]` ranges of each group on each device.
        ring: `[T K + D, 2]` the next range on the same device, and the one before, in a circle that the device closes.
        totals: `[8]` see below.
    """

    option: Ints
    place: Ints
    sums: Floats
    used: Ints
    own_ms: Floats
    held: Ints
    ring: Ints
    totals: Floats


_WIDTH, _SPREAD_MS, _PRICE, _SLOW, _SLOW_MS, _OVER_MS, _NEAR, _LATEST, _COST = range(9)
"""All widths, milliseconds of the collectives of spread tables, price, number of slow devices more than at the start, price
of each in the energy, price of missing memory in it, a sum of exponentials of devices' costs relative to the next, that cost,
and the overall cost with the price."""


class Search(NamedTuple):
    """Scales, orders of the tables, and room for single changes.

    Attributes:
        slowest_ms: `own_ms` of the slowest device at the start.
        scale_ms: by which errors make the slowest of e equal devices slower than each; 0 without errors.
        limit: `[D]` bytes that a device may never exceed; those beyond its capacity cost `over_ms` per capacity.
        ms_per_width: of the all-to-all.
        over_ms: the cost of the start, or 0 if no device may pass its capacity.
        evenness: one of `EVENNESS`.
        by_width: `[T]` tables by width and cost; `rank` `[T]` is its inverse.
        edits: `[E, 4]` table, range, option and place of ranges that a change removes, then of those that it adds.
        touched: `[D]` changed devices.
        marks: `[D]` whether a device is one of them.
        kept_ms: `[D]` their costs before; `kept_sums` `[D, L]` and `kept_totals` their sums and the state's totals.
        free: `[D]` loads of devices without a table.
        busiest: `[2]` the slowest device, and the widest.
    """

    slowest_ms: float
    scale_ms: float
    limit: Ints
    over_ms: float
    evenness: float
    ms_per_width: float
    by_width: Ints
    rank: Ints
    edits: Ints
    touched: Ints
    marks: Mask
    kept_ms: Floats
    kept_sums: Floats
    kept_totals: Floats
    free: Floats
    busiest: Ints


def empty_state(menu: Menu) -> State:
    """All tables nowhere."""
    (num_tables, num_devices), most = menu.allowed.shape, int(np.diff(menu.first_range).max())
    return State(
        option=np.full(num_tables, -1),
        place=np.full((num_tables, most), -1),
        sums=np.zeros((num_devices, menu.loads.shape[1])),
        used=np.zeros(num_devices, np.int64),
        own_ms=np.zeros(num_devices),
        held=np.zeros((menu.num_groups, num_devices), np.int64),
        ring=np.repeat(np.arange(num_tables * most + num_devices), 2).reshape(-1, 2),
        totals=np.zeros(9),
    )


@inlined
def _add_range(menu: Menu, state: State, edit: Ints, sign: int) -> None:
    """Put a range of a table on a place, or with `sign` -1 take it away; costs are left to the caller."""
    table, r, option, place = edit[0], edit[1], edit[2], edit[3]
    number, scope = menu.first_range[option] + r, menu.scope[option]
    first = place if scope == ON_DEVICES else (0 if scope == ON_ALL else place * menu.per_host)
    row, size = menu.load[number], sign * menu.size[number]
    for device in range(first, first + menu.blocks[number]):
        for column in range(menu.loads.shape[1]):
            state.sums[device, column] += sign * menu.loads[row, column]
        state.used[device] += size
        state.totals[_WIDTH] += sign * menu.loads[row, menu.law.width]
        row += menu.step[number]
    if len(menu.price_ms):
        state.totals[_PRICE] += sign * menu.price_ms[number, place]
    state.place[table, r] = place if sign > 0 else -1
    state.option[table] = option
    if scope == ON_DEVICES:
        item, end = table * state.place.shape[1] + r, len(state.option) * state.place.shape[1] + place
        if sign < 0:
            _link(state.ring, state.ring[item, 1], state.ring[item, 0])
        else:
            _link(state.ring, state.ring[end, 1], item)
            _link(state.ring, item, end)
        for g in range(menu.first_group[table], menu.first_group[table + 1]):
            state.held[menu.groups[g], place] += sign


@inlined
def _link(ring: Ints, before: int, after: int) -> None:
    """Make two ranges neighbours."""
    ring[before, 0] = after
    ring[after, 1] = before


@jit
def put(menu: Menu, state: State, table: int, option: int, places: Ints) -> None:
    """Shard a table that is nowhere yet; costs are left to `settle`."""
    edit = np.empty(4, np.int64)
    for r in range(menu.first_range[option + 1] - menu.first_range[option]):
        copy_into(edit, (table, r, option, places[r]))
        _add_range(menu, state, edit, 1)


@jit
def settle(menu: Menu, state: State) -> None:
    """Compute the cost of every device, the collectives of spread tables, and the overall cost."""
    for d in range(len(state.own_ms)):
        state.own_ms[d] = _own_ms(menu, state, d)
    _settle_traffic(menu, state)
    slow, wide, pair = _busiest(menu, state)
    alone = state.own_ms[slow] + _waits_ms(menu, state, state.sums[wide, menu.law.width], pair)
    _compare_with(state, state.own_ms[slow], menu.excess * alone)
    state.totals[_COST] = alone + menu.excess * alone * math.log(state.totals[_NEAR])


@inlined
def _compare_with(state: State, latest: float, scale: float) -> None:
    """Sum the devices' exponentials relative to one that takes so long, of 1 for that, unless there are no errors."""
    near = 0.0
    for own_ms in state.own_ms:
        near += math.exp((own_ms - latest) / scale) if scale else 0.0
    state.totals[_LATEST], state.totals[_NEAR] = latest, near if scale else 1.0


@inlined
def _own_ms(menu: Menu, state: State, device: int) -> float:
    """The device's own part of a step, with what it waits for the device before it."""
    return device_ms(menu.law, state.sums[device]) + menu.law.before_ms * state.sums[device - 1, menu.law.width]


@inlined
def _busiest(menu: Menu, state: State) -> tuple[int, int, float]:
    """The slowest device, the widest, and the largest width of two neighbours together."""
    slow = wide = 0
    width, pair = menu.law.width, 0.0
    for d in range(len(state.own_ms)):
        if state.own_ms[d] > state.own_ms[slow]:
            slow = d
        if state.sums[d, width] > state.sums[wide, width]:
            wide = d
        pair = max(pair, state.sums[d, width] + state.sums[d - 1, width])
    return slow, wide, pair


@jit
def _settle_traffic(menu: Menu, state: State) -> None:
    state.totals[_SPREAD_MS] = 0.0
    for kind in TRAFFIC:
        most = 0.0
        for d in range(len(state.own_ms)):
            most = max(most, state.sums[d, state.sums.shape[1] + kind - NUM_CURVES])
        state.totals[_SPREAD_MS] += curve_ms(menu.law.curves, kind, most)


@inlined
def _waits_ms(menu: Menu, state: State, widest: float, pair: float) -> float:
    """The collectives that all devices wait for, if the widest one and two neighbours are as wide as given, and the price."""
    law = menu.law
    waits = law.fixed_ms + law.total_ms * state.totals[_WIDTH] + law.pair_ms * pair
    return waits + curve_ms(law.curves, ALL_TO_ALL, widest) + state.totals[_SPREAD_MS] + state.totals[_PRICE]


@inlined
def may_hold(menu: Menu, state: State, table: int, device: int) -> bool:
    """Whether a range of the table may be there, memory aside."""
    if not menu.allowed[table, device]:
        return False
    for g in range(menu.first_group[table], menu.first_group[table + 1]):
        others = state.held[menu.groups[g], device]
        for r in range(state.place.shape[1]):
            others -= state.place[table, r] == device
        if others > 0:
            return False
    return True


@inlined
def host_allowed(menu: Menu, table: int, host: int) -> bool:
    """Whether a table may be on all devices of a host, memory aside."""
    is_allowed = True
    for d in range(host * menu.per_host, (host + 1) * menu.per_host):
        is_allowed = is_allowed and menu.allowed[table, d]
    return is_allowed


@inlined
def _range_on(state: State, device: int, steps: int) -> tuple[int, int]:
    """Table and range on a device, so many after the last one in its circle; table -1 if the device has none."""
    most = state.place.shape[1]
    end = len(state.option) * most + device
    item = end
    for _ in range(steps + 1):
        item = state.ring[item, 0]
    if item == end:
        item = state.ring[item, 0]
    if item == end:
        return -1, 0
    _link(state.ring, state.ring[end, 1], state.ring[end, 0])
    _link(state.ring, end, state.ring[item, 0])
    _link(state.ring, item, end)
    return item // most, item % most


@inlined
def _count_device(menu: Menu, state: State, search: Search, device: int, sign: float) -> None:
    """Add a device to the sums of the energy, or with `sign` -1 take it away.

    They are of the 16th power of its cost over the slowest's, of its missing memory, and of an exponential of its cost.
    """
    share = (state.own_ms[device] / search.slowest_ms) ** 4
    state.totals[_SLOW] += sign * share**4
    over = max(state.used[device] / max(menu.capacity[device], 1) - 1, 0.0) if search.over_ms else 0.0
    state.totals[_OVER_MS] += sign * search.over_ms * over
    if search.scale_ms:
        state.totals[_NEAR] += sign * math.exp((state.own_ms[device] - state.totals[_LATEST]) / search.scale_ms)


@inlined
def _energy(state: State, cost_ms: float) -> float:
    """What annealing lowers: the cost, with prices of missing memory and, while it is hot, of devices that are as slow."""
    return cost_ms + state.totals[_SLOW_MS] * state.totals[_SLOW] + state.totals[_OVER_MS]


@inlined
def _slowest_ms(state: State, search: Search, slowest: float) -> float:
    """The time of the slowest device, or its mean over the errors of predictions; at least this while digits are lost."""
    if search.scale_ms == 0 or state.totals[_NEAR] < LEAST:
        return slowest
    return state.totals[_LATEST] + search.scale_ms * math.log(state.totals[_NEAR])


# Numba counts references to every array of these tuples, atomically, in a function that has several exits, may raise an
# error, names single arrays, or uses a tuple last within a branch. In every change this took a quarter of the time.


@inlined
def _touch(menu: Menu, state: State, search: Search, count: int, is_spread: bool) -> int:
    """Keep what the edits may change, for `_undo`, and take its devices out of the energy; return how many there are."""
    num_devices, reach, n = len(state.own_ms), 2 if menu.law.before_ms else 1, 0
    copy_into(search.kept_totals, state.totals)
    for i in range(num_devices if is_spread else count * reach):
        d = i if is_spread else (search.edits[i // reach, 3] + i % reach) % num_devices
        if not search.marks[d]:
            search.marks[d], search.touched[n], search.kept_ms[n] = True, d, state.own_ms[d]
            _count_device(menu, state, search, d, -1.0)
            copy_into(search.kept_sums[n], state.sums[d])
            n += 1
    for i in range(n):
        search.marks[search.touched[i]] = False
    return n


@inlined
def _apply(menu: Menu, state: State, search: Search, removed: int, count: int) -> int:
    """Make the edits until one puts a range where it may not be; return how many were made."""
    done, may_be = 0, True
    while may_be and done < count:
        t, option, place = search.edits[done, 0], search.edits[done, 2], search.edits[done, 3]
        if done >= removed and menu.scope[option] == ON_DEVICES and not may_hold(menu, state, t, place):
            may_be = False
        else:
            _add_range(menu, state, search.edits[done], 1 if done >= removed else -1)
            done += 1
    return done


@inlined
def _may_pay(menu: Menu, state: State, search: Search, n: int, is_spread: bool, threshold: float) -> bool:
    """Cost the touched devices; whether they fit and the energy may be below the threshold, whatever the others cost."""
    slowest, widest, pays = 0.0, 0.0, True
    for i in range(n):
        d = search.touched[i]
        pays = pays and state.used[d] <= search.limit[d]
        widest = max(widest, state.sums[d, menu.law.width])
    if is_spread and pays:
        _settle_traffic(menu, state)
    waits = _waits_ms(menu, state, widest, widest)
    i = n - 1
    while pays and i >= 0:
        d = search.touched[i]
        i -= 1
        state.own_ms[d] = _own_ms(menu, state, d)
        slowest = max(slowest, state.own_ms[d])
        _count_device(menu, state, search, d, 1.0)
        pays = _energy(state, _slowest_ms(state, search, slowest) + waits) < threshold
    return pays


@inlined
def _pays(menu: Menu, state: State, search: Search, threshold: float) -> bool:
    """Compute the cost and the busiest devices; whether the energy is below the threshold."""
    slow, wide, pair = _busiest(menu, state)
    if not LEAST < state.totals[_NEAR] < len(state.own_ms) / LEAST:
        _compare_with(state, state.own_ms[slow], search.scale_ms)
    waits = _waits_ms(menu, state, state.sums[wide, menu.law.width], pair)
    state.totals[_COST] = _slowest_ms(state, search, state.own_ms[slow]) + waits
    pays = _energy(state, state.totals[_COST]) < threshold
    search.busiest[0] = slow if pays else search.busiest[0]
    search.busiest[1] = wide if pays else search.busiest[1]
    return pays


@inlined
def _undo(menu: Menu, state: State, search: Search, n: int, removed: int, done: int) -> None:
    """Take `done` edits back, and restore `n` touched devices."""
    for e in range(done - 1, -1, -1):
        _add_range(menu, state, search.edits[e], -1 if e >= removed else 1)
    for i in range(n):
        state.own_ms[search.touched[i]] = search.kept_ms[i]
        copy_into(state.sums[search.touched[i]], search.kept_sums[i])
    for i in range(len(state.totals) if n else 0):
        state.totals[i] = search.kept_totals[i]


@inlined
def _change(
    menu: Menu, state: State, search: Search, removed: int, count: int, is_spread: bool, threshold: float
) -> bool:
    """Make the `count` edits of `search`, the first `removed` of which take ranges away, if the energy stays below."""
    n = _touch(menu, state, search, count, is_spread)
    done = _apply(menu, state, search, removed, count)
    pays = done == count
    if pays:
        pays = _may_pay(menu, state, search, n, is_spread, threshold)
    if pays:
        pays = _pays(menu, state, search, threshold)
    _undo(menu, state, search, 0 if pays else n, removed, 0 if pays else done)
    return pays


@inlined
def _choose_hosts(menu: Menu, state: State, table: int, places: Ints, generator: Generator) -> bool:
    """Choose the less busy of two hosts for the first range, and the hosts after it; whether the table may be there."""
    hosts, busy, may_be = len(state.own_ms) // menu.per_host, state.sums.shape[1] - 1, True
    begin, second = int(generator.random() * hosts), int(generator.random() * hosts)
    if state.sums[second * menu.per_host, busy] < state.sums[begin * menu.per_host, busy]:
        begin = second
    for k in range(len(places)):
        places[k] = (begin + k) % hosts
        may_be = may_be and host_allowed(menu, table, places[k])
    return may_be


@inlined
def _choose_devices(menu: Menu, state: State, search: Search, table: int, places: Ints, generator: Generator) -> bool:
    """Choose the least loaded devices without the table, the first at random half of the time; whether there are enough."""
    option, num_devices = state.option[table], len(state.own_ms)
    for d in range(num_devices):
        search.free[d] = state.own_ms[d] + search.ms_per_width * state.sums[d, menu.law.width]
    first, is_on_devices = menu.first_range[option], menu.scope[option] == ON_DEVICES
    for r in range(menu.first_range[option + 1] - first if is_on_devices else 0):
        search.free[state.place[table, r]] -= menu.row_ms[menu.load[first + r]]
    if generator.random() < 0.5:
        search.free[int(generator.random() * num_devices)] = -np.inf
    for k in range(len(places)):
        least = 0
        for d in range(num_devices):
            least = d if search.free[d] < search.free[least] else least
        places[k], search.free[least] = least, np.inf
    return len(places) <= num_devices


class Found(NamedTuple):
    """A placement of a menu: `[T]` options, `[T, K]` places and its cost, price included."""

    option: Ints
    place: Ints
    cost_ms: float


@jit
def _anneal(
    menu: Menu, state: State, search: Search, best: Found, generator: Generator, moves: int, decay: float, run: Floats
) -> None:
    """Take or leave so many changes, and write the best state to `best`.

    Args:
        decay: of the temperature with each change.
        run: `[2]` temperature, and cost of the best state with the price of ties, so far.
    """
    num_tables, num_devices = menu.allowed.shape
    edits, num_changed = search.edits, num_tables
    changed, is_changed = np.arange(num_tables), np.ones(num_tables, np.bool_)  # since the best state was kept
    places = np.zeros(state.place.shape[1], np.int64)
    for _ in range(moves):
        run[0] *= decay
        state.totals[_SLOW_MS] = search.evenness * run[0]
        threshold = _energy(state, state.totals[_COST]) + run[0] * generator.exponential()
        t, r, drawn = -1, 0, generator.random()
        if drawn < _BUSIEST:
            t, r = _range_on(state, search.busiest[int(2 * drawn > _BUSIEST)], int(generator.random() * CANDIDATES))
        if t < 0:
            t = int(generator.random() * num_tables)
            r = int(generator.random() * (menu.first_range[state.option[t] + 1] - menu.first_range[state.option[t]]))
        old, other, is_spread = state.option[t], -1, menu.scope[state.option[t]] != ON_DEVICES
        options = menu.last_option[t] - menu.first_option[t]
        kind = int(generator.random() * (_SHARD_OTHERWISE + (options > 1)))
        if is_spread or kind == _SHARD_OTHERWISE:
            new = menu.first_option[t] + int(generator.random() * options)
            is_spread = is_spread or menu.scope[new] != ON_DEVICES
            if is_spread:
                if generator.random() * num_devices > CANDIDATES:
                    continue
            elif new == old:
                continue
            removed = menu.first_range[old + 1] - menu.first_range[old]
            added = menu.first_range[new + 1] - menu.first_range[new]
            chosen, may_be = places[:added], True
            if menu.scope[new] == ON_DEVICES:
                may_be = _choose_devices(menu, state, search, t, chosen, generator)
            elif menu.scope[new] == ON_HOST:
                may_be = _choose_hosts(menu, state, t, chosen, generator)
            else:
                chosen[0] = 0
            if not may_be:
                continue
            for k in range(removed):
                copy_into(edits[k], (t, k, old, state.place[t, k]))
            for k in range(added):
                copy_into(edits[removed + k], (t, k, new, places[k]))
            count = removed + added
        else:
            device, second = state.place[t, r], 0
            if kind == _SWAP_ALIKE:
                position = search.rank[t] + int((2 * generator.random() - 1) * (CANDIDATES + 1))
                other = search.by_width[min(max(position, 0), num_tables - 1)]
                if menu.scope[state.option[other]] != ON_DEVICES:
                    continue
                target = state.place[other, 0]
            else:
                target = int(generator.random() * num_devices)
                if kind == _SWAP:
                    other, second = _range_on(state, target, int(generator.random() * CANDIDATES))
                    if other < 0:
                        continue
            if target == device or other == t:
                continue
            removed, e = (2 if other >= 0 else 1), 0
            for place, swapped in ((device, target), (target, device)):
                copy_into(edits[e], (t, r, old, place))
                if other >= 0:
                    e += 1
                    copy_into(edits[e], (other, second, state.option[other], swapped))
                e += 1
            count = 2 * removed
        if _change(menu, state, search, removed, count, is_spread, threshold):
            for moved in (t, other):
                if moved >= 0 and not is_changed[moved]:
                    is_changed[moved], changed[num_changed] = True, moved
                    num_changed += 1
            kept_ms = state.totals[_COST] + _TIE * search.slowest_ms * state.totals[_SLOW]
            is_best = kept_ms < run[1] and state.totals[_COST] <= best.cost_ms
            if is_best and (not search.over_ms or (state.used <= menu.capacity).all()):
                run[1] = kept_ms
                for moved in changed[:num_changed]:
                    best.option[moved], is_changed[moved] = state.option[moved], False
                    copy_into(best.place[moved], state.place[moved])
                num_changed = 0


def state_of(menu: Menu, option: Ints, place: Ints) -> State:
    """The state of a placement."""
    state = empty_state(menu)
    _fill(menu, state, option, place)
    return state


@jit
def _fill(menu: Menu, state: State, option: Ints, place: Ints) -> None:
    for t in range(len(option)):
        put(menu, state, t, option[t], place[t])
    settle(menu, state)


def found(state: State) -> Found:
    """The placement of a state."""
    return Found(state.option, state.place, float(state.totals[_COST]))


def priced(menu: Menu, option: Ints, place: Ints) -> Found | None:
    """A placement with its cost; None if it is not legal."""
    state = state_of(menu, option, place)
    return found(state) if _is_legal(menu, state) else None


@jit
def _is_legal(menu: Menu, state: State) -> bool:
    if (state.used > menu.capacity).any():
        return False
    for t in range(len(state.option)):
        option = state.option[t]
        if menu.scope[option] == ON_DEVICES:
            for r in range(menu.first_range[option + 1] - menu.first_range[option]):
                if not may_hold(menu, state, t, state.place[t, r]):
                    return False
    return True


def never() -> bool:
    """A search without a deadline."""
    return False


def anneal(
    menu: Menu,
    start: Found,
    moves: int,
    seed: int = 0,
    over: float = 0.0,
    evenness: float = EVENNESS[0],
    is_late: IsLate = never,
) -> Found:
    """The best placement that `moves` changes of a start visit; never costs more than a legal start.

    On the way, and at the start, a device may hold a share `over` more than its capacity, at a price, so that tables can
    pass each other. The cost is infinite if no placement within the capacity was met. `is_late` ends it early.
    """
    state, search = prepared(menu, start, over, evenness)
    cost_ms = start.cost_ms if (state.used <= menu.capacity).all() else np.inf
    best = Found(start.option.copy(), start.place.copy(), cost_ms)
    decay, generator = (_COLD / _HOT) ** (1 / max(moves, 1)), np.random.default_rng(seed)
    run = np.array([_HOT * start.cost_ms, cost_ms])
    for done in range(0, moves, _UNWATCHED):
        if not is_late():
            _anneal(menu, state, search, best, generator, min(moves - done, _UNWATCHED), decay, run)
    return found(state_of(menu, best.option, best.place)) if run[1] < np.inf else best


def prepared(menu: Menu, start: Found, over: float = 0.0, evenness: float = EVENNESS[0]) -> tuple[State, Search]:
    """The state of a start, and the other inputs of its search."""
    state, num_devices = state_of(menu, start.option, start.place), len(menu.capacity)
    width, rows = state.sums[:, menu.law.width], menu.first_row
    by_width = np.lexsort((menu.row_ms[rows], menu.loads[rows, menu.law.width]))
    scale = curve_ms(menu.law.curves, ALL_TO_ALL, width.max()) / max(width.max(), 1e-9) + 2 * menu.law.pair_ms
    search = Search(
        slowest_ms=max(state.own_ms.max(), 1e-9),
        scale_ms=menu.excess * start.cost_ms,
        limit=np.maximum(menu.capacity * (1 + over), state.used).astype(np.int64),
        over_ms=start.cost_ms if over else 0.0,
        evenness=evenness,
        ms_per_width=scale,
        by_width=by_width,
        rank=np.argsort(by_width),
        edits=np.zeros((2 * state.place.shape[1] + 2, 4), np.int64),
        touched=np.zeros(num_devices, np.int64),
        marks=np.zeros(num_devices, np.bool_),
        kept_ms=np.zeros(num_devices),
        kept_sums=np.zeros_like(state.sums),
        kept_totals=np.zeros_like(state.totals),
        free=np.zeros(num_devices),
        busiest=np.array([state.own_ms.argmax(), width.argmax()]),
    )
    state.totals[_COST] = start.cost_ms
    _compare_with(state, search.slowest_ms, search.scale_ms)
    return state, search
