"""Whether tables fit their devices' memory at all: an exact search, for where no rule of thumb finds room.

Packing is an integer program, which HiGHS solves (`scipy.optimize.milp`): which item is on which device, and, where tables
may be split, how many of its columns. The search is limited in nodes, not in time, so a task ends alike on any machine.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dreamshard.limits import PlacementLimits

_NODES = 1_000  # of branch and bound; small tasks need fewer than ten
_MOST_CELLS = 8_192  # items x devices; more would take minutes, and many items leave no need for it
_SCALE = 1e6  # of a device's capacity in the program, against the solver's tolerance of 1e-6
_SHRUNK = 1 - 1e-5  # of the capacity, where rounding by the solver has overfilled a device


@dataclass(frozen=True)
class Packing:
    """What is known about a task.

    Attributes:
        amounts: `[I, D]` share of each item on each device, in its units; None where no packing was found.
        is_impossible: whether none exists; False also where the search was ended before that was known.
    """

    amounts: NDArray[np.int64] | None
    is_impossible: bool = False

    @property
    def device(self) -> NDArray[np.int64] | None:
        """`[I]` device of each item, none of which is split."""
        return None if self.amounts is None else self.amounts.argmax(axis=1)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How items may be split.

    Attributes:
        units: `[I]` parts that an item consists of.
        unit_bytes: `[I]` of each part.
        base_bytes: `[I]` that a device needs besides, if it has any part.
        least: `[I]` units on a device that has any.
        most: `[I]` devices of an item.
    """

    units: NDArray[np.int64]
    unit_bytes: NDArray[np.int64]
    base_bytes: NDArray[np.int64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]

    @classmethod
    def whole(cls, item_bytes: NDArray[np.int64]) -> "Parts":
        """Of items that stay whole."""
        units, least, most = (np.ones_like(item_bytes) for _ in range(3))
        return cls(units=units, unit_bytes=item_bytes.copy(), base_bytes=np.zeros_like(units), least=least, most=most)

    def held_bytes(self, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[D]` bytes on each device."""
        held: NDArray[np.int64] = (self.unit_bytes[:, None] * amounts + self.base_bytes[:, None] * (amounts > 0)).sum(
            axis=0
        )
        return held


def pack_whole(limits: PlacementLimits) -> Packing:
    """Items, each whole on one device. The last few answers are kept, since all placers ask about the same tasks."""
    arrays = (limits.item_bytes, limits.capacity_bytes, limits.allowed, limits.apart)
    return _whole(*(array.tobytes() for array in arrays))


@lru_cache(maxsize=8)
def _whole(item_bytes: bytes, capacity_bytes: bytes, allowed: bytes, apart: bytes) -> Packing:
    sizes, room = np.frombuffer(item_bytes, np.int64), np.frombuffer(capacity_bytes, np.int64)
    masks = (np.frombuffer(mask, np.bool_).reshape(len(sizes), -1) for mask in (allowed, apart))
    return pack_parts(PlacementLimits(np.arange(len(sizes)), sizes, room, *masks), Parts.whole(sizes))


def pack_parts(limits: PlacementLimits, parts: Parts) -> Packing:
    """Items, each in as many parts as is allowed."""
    if limits.allowed.size > _MOST_CELLS:
        return Packing(None)
    capacity = limits.capacity_bytes
    for share in (1.0, _SHRUNK):
        room = np.floor(capacity * share).astype(np.int64) if share < 1 else capacity
        answer = _Program(limits, parts, room).solution()
        if answer.amounts is None:
            return answer if share == 1.0 else Packing(None)
        if (parts.held_bytes(answer.amounts) <= capacity).all():
            return answer
    return Packing(None)


class _Program:
    """The integer program: y `[I, D]` is whether a device has a part of an item, and x, for those split, how many units."""

    def __init__(self, limits: PlacementLimits, parts: Parts, capacity_bytes: NDArray[np.int64]) -> None:
        self.limits, self.parts = limits, parts
        self.num_items, self.num_devices = limits.allowed.shape
        self.split = np.flatnonzero(parts.most > 1)
        divisor = math.gcd(*(int(each) for each in (*parts.unit_bytes, *parts.base_bytes)))
        self.capacity = (capacity_bytes // max(divisor, 1)).astype(np.float64)
        scale = min(1.0, _SCALE / max(self.capacity.max(), 1.0))
        self.capacity *= scale
        self.unit, self.base = (each / max(divisor, 1) * scale for each in (parts.unit_bytes, parts.base_bytes))

    def solution(self) -> Packing:
        """The packing that HiGHS finds, if it finds one."""
        cells = self.num_items * self.num_devices
        num_variables = cells + len(self.split) * self.num_devices
        upper = np.concatenate(
            [self._may_hold().ravel().astype(np.float64), np.repeat(self.parts.units[self.split], self.num_devices)]
        )
        found: Any = scipy.optimize.milp(
            c=np.zeros(num_variables),
            integrality=np.ones(num_variables),
            bounds=scipy.optimize.Bounds(0, upper),
            constraints=self._constraints(num_variables),
            options={"node_limit": _NODES, "presolve": True},
        )
        if found.x is None:
            return Packing(None, is_impossible=found.status == 2)  # 2 is infeasible
        rounded = np.rint(found.x).astype(np.int64)
        amounts = rounded[:cells].reshape(self.num_items, self.num_devices)
        amounts[self.split] = rounded[cells:].reshape(-1, self.num_devices)
        return Packing(amounts)

    def _may_hold(self) -> NDArray[np.bool_]:
        """`[I, D]` devices that may hold an item; of devices that are alike, the largest items take the first ones."""
        allowed = self.limits.allowed.copy()
        alike = len(set(self.limits.capacity_bytes.tolist())) == 1 and bool(allowed.all())
        if alike and not len(self.split):
            for device, item in enumerate(np.argsort(-self.limits.item_bytes, kind="stable")[: self.num_devices]):
                allowed[item, device + 1 :] = False
        return allowed

    def _constraints(self, num_variables: int) -> list[Any]:
        items, devices = np.divmod(np.arange(self.num_items * self.num_devices), self.num_devices)
        y = np.arange(self.num_items * self.num_devices)
        x = len(y) + np.arange(len(self.split) * self.num_devices)
        x_item = np.repeat(np.arange(len(self.split)), self.num_devices)
        y_of_x = (self.split[:, None] * self.num_devices + np.arange(self.num_devices)).ravel()
        x_device = np.tile(np.arange(self.num_devices), len(self.split))
        is_whole = np.ones(self.num_items, np.bool_)
        is_whole[self.split] = False
        whole_bytes = np.where(is_whole, self.unit * self.parts.units + self.base, self.base)

        def rows(row: Any, column: Any, value: Any, count: int, low: Any, high: Any) -> Any:
            matrix = scipy.sparse.csr_matrix((value, (row, column)), shape=(count, num_variables))
            return scipy.optimize.LinearConstraint(matrix, low, high)

        once = rows(items, y, np.ones(len(y)), self.num_items, 1, np.where(is_whole, 1, self.parts.most))
        memory = rows(
            np.concatenate([devices, x_device]),
            np.concatenate([y, x]),
            np.concatenate([whole_bytes[items], self.unit[self.split][x_item]]),
            self.num_devices,
            0,
            self.capacity,
        )
        result = [once, memory]
        first, second = np.nonzero(np.triu(self.limits.apart, 1))
        if len(first):
            pair = np.arange(len(first) * self.num_devices)
            d = np.tile(np.arange(self.num_devices), len(first))
            columns = [np.repeat(each, self.num_devices) * self.num_devices + d for each in (first, second)]
            result.append(rows(np.tile(pair, 2), np.concatenate(columns), np.ones(2 * len(pair)), len(pair), 0, 1))
        if len(x):
            ones, each = np.ones(len(x)), np.arange(len(x))
            units, least = self.parts.units[self.split], self.parts.least[self.split]
            result.append(rows(x_item, x, ones, len(self.split), units, units))
            for bound, low, high in ((units, -np.inf, 0), (least, 0, np.inf)):  # least y <= x <= units y
                value = np.concatenate([ones, -bound[x_item].astype(np.float64)])
                result.append(rows(np.tile(each, 2), np.concatenate([x, y_of_x]), value, len(x), low, high))
        return result
