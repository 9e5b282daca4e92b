"""Paths between two placements, one table after another."""

import numpy as np
from numpy.typing import NDArray

from dreamshard.moving.relocation import Relocation, Stop
from dreamshard.summed_costs import Change

Array = NDArray[np.float64]

_STOPS = 100  # of a path that are priced
_SHARPNESS = 16.0  # of the mean of devices that stands for the slowest one in ordering tables


def paths(relocation: Relocation, start: Stop, end: Stop) -> list[Stop]:
    """Stops of a path from `start`, by gain per byte, and of one back from `end`, by bytes saved per millisecond lost."""
    differing = [t for t, (one, other) in enumerate(zip(start.shardings, end.shardings, strict=True)) if one != other]
    if not differing:
        return []
    there = [Change(t, start.shardings[t], end.shardings[t]) for t in differing]
    back = [Change(t, end.shardings[t], start.shardings[t]) for t in differing]
    gained = relocation.device_ms(start, [[change] for change in there])[0] - start.device_ms  # [R, D]
    lost = relocation.device_ms(end, [[change] for change in back])[0] - end.device_ms
    change_ms = (gained - lost) / 2  # the effect of a table in the middle of the way, to first order
    sizes = np.array([relocation.bytes_of.of(change.table, change.before) for change in back], np.float64)
    sizes -= np.array([relocation.bytes_of.of(change.table, change.before) for change in there])
    stops = []
    for stop, changes, order in (
        (start, there, _order(start.device_ms, change_ms, sizes)),
        (end, back, _order(end.device_ms, -change_ms, -sizes)),
    ):
        for part in np.array_split(order, min(_STOPS, len(order))):
            stop = relocation.after(stop, [changes[i] for i in part.tolist()])
            stops.append(stop)
    return stops[:-1]  # the way back ends at the start


def _order(device_ms: Array, change_ms: Array, sizes: Array) -> NDArray[np.int64]:
    """`[R]` changes, each the best at its turn: by cost saved per byte, or by bytes saved per cost.

    Args:
        device_ms: `[D]` before the first change.
        change_ms: `[R, D]` that each change adds.
        sizes: `[R]` bytes that each change moves; negative where it saves some.
    """
    left = np.arange(len(sizes))
    device_ms, order = device_ms.copy(), []
    least = max(float(np.abs(sizes).max()), 1.0) * 1e-6
    while len(left):
        now = _level(device_ms[None])[0]
        rise = _level(device_ms + change_ms[left]) - now  # [R]
        size = sizes[left]
        # free gains first; then what gains most per byte, or saves most bytes for what it costs
        rate = np.where(size > least, rise / np.maximum(size, least), rise / least)
        saving = size < -least
        rate = np.where(saving, np.where(rise <= 0, -np.inf, size / np.maximum(rise, 1e-12)), rate)
        best = int(rate.argmin())
        chosen = int(left[best])
        order.append(chosen)
        device_ms += change_ms[chosen]
        left = np.delete(left, best)
    return np.array(order)


def _level(device_ms: Array) -> Array:
    """`[B]` a mean of devices that is close to the slowest one's, but falls with each that comes near it."""
    slowest = np.maximum(device_ms.max(axis=1), 1e-12)
    relative = np.maximum(device_ms, 0.0) / slowest[:, None]
    level: Array = slowest * (relative**_SHARPNESS).mean(axis=1) ** (1 / _SHARPNESS)
    return level
