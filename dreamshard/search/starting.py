"""Placements from which the search starts: greedy ones, and how tables are sharded if devices could be perfectly even.

How to shard is decided first, by its cost if every device had the same share of all loads: an estimate that needs sums
over tables only, so that all combinations of collectives can be compared. Where shards are is decided by greedy, which splits
tables as far as it must for every device to stay within a little more than the even share.
"""

import math
from typing import NamedTuple

import numpy as np

from dreamshard.cost_model.compiled import (
    ALL_TO_ALL,
    NUM_CURVES,
    TRAFFIC,
    Floats,
    Ints,
    copy_into,
    curve_ms,
    device_ms,
    inlined,
    jit,
)
from dreamshard.search.annealing import (
    CANDIDATES,
    ON_ALL,
    ON_DEVICES,
    Found,
    Menu,
    State,
    empty_state,
    found,
    host_allowed,
    may_hold,
    put,
    settle,
)

_SLOWEST_COUNTS = 10  # times as much as the device that a table is put on
_AVOIDED = 1e6  # more load of a device, or host, that is too wide or has another range of the table


class Target(NamedTuple):
    """Targets of each device: its own cost and its width; or a limit of its width alone, if its cost may be infinite."""

    own_ms: float
    width: float


ANYTHING = Target(math.inf, math.inf)


@jit
def _load(target: Target, own_ms: float, width: float, ms_per_width: float) -> float:
    """A device's cost with the all-to-all of its width; within a width, without it; with a target, its share of that."""
    if target.own_ms < np.inf:
        return max(own_ms / target.own_ms, width / target.width)
    if target.width < np.inf:
        return own_ms + _AVOIDED * (width > target.width)
    return own_ms + ms_per_width * width


@inlined
def _fit_on_devices(
    menu: Menu,
    state: State,
    t: int,
    option: int,
    places: Ints,
    scale: float,
    target: Target,
    before: Floats,
    most: float,
) -> float:
    """Choose the device of each range that ends least loaded; return the largest load, infinite if it comes to `most`.

    Only the devices with the least load `before` are tried. Without a target, the slowest device's cost counts more.
    """
    first, width, worst, after = menu.first_range[option], menu.law.width, 0.0, np.empty(menu.loads.shape[1])
    weight = _SLOWEST_COUNTS * (min(target.own_ms, target.width) == np.inf)
    slowest = widest = 0.0
    if weight:
        slowest, widest = state.own_ms.max(), state.sums[:, width].max()
    near, near_load, kept = np.zeros(CANDIDATES, np.int64), np.zeros(CANDIDATES), np.zeros(len(places))
    for k in range(menu.first_range[option + 1] - first):
        row, size, count, bar = menu.load[first + k], menu.size[first + k], 0, np.inf
        for d in range(len(before)):
            load = before[d]
            if load >= bar or not may_hold(menu, state, t, d):
                continue
            if target.own_ms == np.inf and state.sums[d, width] + menu.loads[row, width] > target.width:
                load += _AVOIDED
                if load >= bar:
                    continue
            free = menu.capacity[d] - state.used[d] - size
            for j in range(k):
                free -= menu.size[first + j] * (places[j] == d)
            if free < 0:
                continue
            at, count = min(count, CANDIDATES - 1), min(count + 1, CANDIDATES)
            while at > 0 and near_load[at - 1] > load:
                near[at], near_load[at] = near[at - 1], near_load[at - 1]
                at -= 1
            near[at], near_load[at] = d, load
            bar = near_load[count - 1] if count == CANDIDATES else np.inf
        best, least, best_load = -1, np.inf, np.inf
        for n in range(count):
            d, apart = near[n], _AVOIDED * (near_load[n] >= _AVOIDED)
            if near_load[n] + weight * (slowest + scale * widest) >= least:
                break  # a table makes no device faster
            for column in range(len(after)):
                after[column] = state.sums[d, column] + menu.loads[row, column]
            own_ms = device_ms(menu.law, after)
            load = _load(target, own_ms, after[width], scale)
            cost = load + apart + weight * (max(slowest, own_ms) + scale * max(widest, after[width]))
            if cost < least:
                best, least, best_load = d, cost, load
        worst = max(worst, best_load)
        if worst >= most:
            for j in range(k - 1, -1, -1):
                before[places[j]] = kept[j]
            return np.inf
        places[k], kept[k] = best, before[best]
        before[best] += _AVOIDED
    for j in range(menu.first_range[option + 1] - first - 1, -1, -1):
        before[places[j]] = kept[j]
    return worst


@jit
def _fit_on_hosts(menu: Menu, state: State, t: int, option: int, places: Ints, scale: float, target: Target) -> float:
    """Choose a host for each range of an option that is on all devices of a host, or of all: the least busy that can hold it.

    Return the largest load that a device of these hosts gets; infinite if the option does not fit.
    """
    num_devices, on_all, worst, width = len(state.own_ms), menu.scope[option] == ON_ALL, 0.0, menu.law.width
    size, first = num_devices if on_all else menu.per_host, menu.first_range[option]
    for k in range(menu.first_range[option + 1] - first):
        best, least = -1, np.inf
        for h in range(num_devices // size):
            fits, total, num_bytes = on_all or host_allowed(menu, t, h), 0.0, menu.size[first + k]
            for j in range(k):
                total += (places[j] == h) * _AVOIDED
                num_bytes += (places[j] == h) * menu.size[first + j]
            for d in range(h * size, (h + 1) * size):
                fits = fits and state.used[d] + num_bytes <= menu.capacity[d]
                total += state.own_ms[d]
            if fits and total < least:
                best, least = h, total
        if best < 0:
            return np.inf
        places[k] = best
        for d in range(best * size, (best + 1) * size) if not on_all and target.own_ms < np.inf else range(0):
            after = state.sums[d] + menu.loads[menu.load[first + k] + (d - best * size) * menu.step[first + k]]
            worst = max(worst, _load(target, device_ms(menu.law, after), after[width], scale))
    return worst


@jit
def _greedy(menu: Menu, state: State, order: Ints, scale: float, target: Target) -> bool:
    places, kept = np.zeros(state.place.shape[1], np.int64), np.zeros(state.place.shape[1], np.int64)
    loads, most, is_stale = np.zeros(len(state.own_ms)), _AVOIDED if target.own_ms == np.inf else 1.0, False
    for t in order:
        chosen, least = menu.first_option[t], np.inf
        if is_stale and menu.scope[chosen] != ON_ALL:  # tables on all devices need no costs
            settle(menu, state)
            for d in range(len(loads)):
                loads[d] = _load(target, state.own_ms[d], state.sums[d, menu.law.width], scale)
            is_stale = False
        for option in range(menu.first_option[t], menu.last_option[t]):
            is_spread = menu.scope[option] != ON_DEVICES
            if least < np.inf and (least <= most or (is_spread and menu.scope[chosen] == ON_DEVICES)):
                break
            if is_spread:
                worst = _fit_on_hosts(menu, state, t, option, places, scale, target)
            else:
                worst = _fit_on_devices(menu, state, t, option, places, scale, target, loads, least)
            if worst < least:
                chosen, least = option, worst
                copy_into(kept, places)
        if least == np.inf:
            return False
        put(menu, state, t, chosen, kept)
        if menu.scope[chosen] != ON_DEVICES:
            is_stale = True
        else:
            for d in kept[: menu.first_range[chosen + 1] - menu.first_range[chosen]]:
                state.own_ms[d] = device_ms(menu.law, state.sums[d])
                loads[d] = _load(target, state.own_ms[d], state.sums[d, menu.law.width], scale)
    settle(menu, state)
    return True


def greedy(menu: Menu, order: Ints, target: Target = ANYTHING) -> Found | None:
    """A legal start: tables in an order, each in its first option within a target, or else in the one of the least load.

    A table is spread over devices only if it fits nowhere otherwise, or its first option is. None if one fits nowhere.
    """
    state = empty_state(menu)
    return found(state) if _greedy(menu, state, order, ms_per_width(menu), target) else None


def ms_per_width(menu: Menu) -> float:
    """Milliseconds of the all-to-all per unit of the widest device's width, if all are as wide."""
    total = float(menu.loads[menu.first_row, menu.law.width].sum())
    even = max(total / menu.allowed.shape[1], 1e-9)
    return float(curve_ms(menu.law.curves, ALL_TO_ALL, even) / even + 2 * menu.law.pair_ms + menu.law.before_ms)


class EvenSplit(NamedTuple):
    """How tables are sharded: `[T]` options, the load of devices that share all loads evenly, and the cost of such."""

    option: Ints
    even: Target
    cost_ms: float


def split_evenly(menu: Menu, option: Ints, limit: Target = ANYTHING) -> EvenSplit:
    """Options, from given ones on, that cost least if every device had the same share of all loads.

    One table alone never pays for a collective that others could share, so start from many spread tables: each changes to
    the option that costs least next to the others', until none does. Options with a range beyond the limit are left out.
    """
    return _even_split(menu, option, limit, may_change=True)


def _even_split(menu: Menu, option: Ints, limit: Target, *, may_change: bool) -> EvenSplit:
    option = option.copy()
    own_ms, width, cost_ms = _split_evenly(menu, option, limit, may_change)
    return EvenSplit(option, Target(own_ms, width), cost_ms)


@jit
def _even_ms(menu: Menu, total: Floats, share: Floats) -> tuple[float, float, float]:
    """A device's own cost, its width and the overall cost, if all devices have the same share of `total` `[L]`."""
    law, num_devices = menu.law, len(menu.capacity)
    copy_into(share, total / num_devices)
    share[law.tables] = max(share[law.tables], 1.0)
    width = share[law.width]
    own_ms = device_ms(law, share) + law.before_ms * width
    cost = own_ms + law.fixed_ms + (law.total_ms * num_devices + 2 * law.pair_ms) * width
    cost += curve_ms(law.curves, ALL_TO_ALL, width)
    for kind in TRAFFIC:
        cost += curve_ms(law.curves, kind, share[len(share) + kind - NUM_CURVES])
    return own_ms, width, cost


@jit
def _split_evenly(menu: Menu, option: Ints, limit: Target, may_change: bool) -> tuple[float, float, float]:
    columns = menu.loads.shape[1]
    loads = np.zeros((len(menu.scope), columns))
    beyond = np.zeros(len(menu.scope), np.bool_)
    for t in range(len(option)):
        for o in range(menu.first_option[t], menu.last_option[t]) if may_change else range(option[t], option[t] + 1):
            for r in range(menu.first_range[o], menu.first_range[o + 1]):
                load = menu.loads[menu.load[r]]
                alike = 1 if menu.step[r] else menu.blocks[r]
                for b in range(menu.blocks[r] // alike):
                    copy_into(loads[o], loads[o] + alike * menu.loads[menu.load[r] + b])
                if limit.own_ms < np.inf and menu.scope[o] == ON_DEVICES:
                    beyond[o] = beyond[o] or _load(limit, device_ms(menu.law, load), load[menu.law.width], 0.0) > 1
    total, share = np.zeros(columns), np.zeros(columns)
    for t in range(len(option)):
        total += loads[option[t]]
    for _ in range(len(option) * may_change):  # sweeps; a few do
        changed = False
        for t in range(len(option)):
            total -= loads[option[t]]
            least, chosen = np.inf, option[t]
            for o in range(menu.first_option[t], menu.last_option[t]):
                if limit.own_ms == np.inf and menu.scope[o] == ON_DEVICES and o > menu.first_option[t]:
                    continue
                _, _, cost = _even_ms(menu, total + loads[o], share)
                cost *= 1e3 if beyond[o] else 1.0  # unless there is no other
                if cost < least * (1 - 1e-9):
                    least, chosen = cost, o
            changed = changed or chosen != option[t]
            option[t] = chosen
            total += loads[chosen]
        if not changed:
            break
    return _even_ms(menu, total, share)


def balanced(menu: Menu) -> EvenSplit:
    """The first option of each table, if every device had the same share of all loads: less than any real placement."""
    return _even_split(menu, menu.first_option[:-1], ANYTHING, may_change=False)
