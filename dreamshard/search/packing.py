"""Where whole tables may be by a task's constraints, and whether they fit the devices' memory at all.

*Items* are placed: tables, or groups of tables that share a device. If no rule of thumb finds room, packing is an integer
program, which HiGHS solves (`scipy.optimize.milp`): which item is on which device, and how many of its columns if tables may
be split. The search is limited in nodes, not in time, so a task ends alike on any machine.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.files.text import gib
from dreamshard.placer import NoPlacementError
from dreamshard.shards import allowed_devices
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rank = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


@dataclass(frozen=True)
class PlacementLimits:
    """Where `I` items may be.

    Attributes:
        item: `[T]` the item of each table.
        item_bytes: `[I]`.
        capacity_bytes: `[D]`.
        allowed: `[I, D]` devices that may hold an item.
        apart: `[I, I]` whether two items may not share a device.
    """

    item: Indices
    item_bytes: Indices
    capacity_bytes: Indices
    allowed: Mask
    apart: Mask

    @classmethod
    def of(cls, task: PlacementTask) -> "PlacementLimits":
        """Limits of a task's tables.

        Raises:
            NoPlacementError: no device has room for tables that are to be together.
        """
        names = np.array([parent_name(name) for name in task.tables.names])
        item = np.arange(len(names))
        for group in task.constraints.together:
            held = np.isin(names, list(group))
            if held.any():
                joined = np.isin(item, item[held])
                item[joined] = item[joined].min()
        item = np.unique(item, return_inverse=True)[1].astype(np.int64)
        members = np.bincount(item)
        allowed = np.ones((len(members), task.num_devices), np.bool_)
        np.logical_and.at(allowed, item, allowed_devices(task).numpy())
        apart = np.zeros((len(members), len(members)), np.bool_)
        for group in task.constraints.apart:
            tables = np.flatnonzero(np.isin(names, list(group)))
            first, second = np.meshgrid(tables, tables)
            differ = names[first] != names[second]  # columns of one table may be together
            apart[item[first[differ]], item[second[differ]]] = True
        item_bytes, capacity_bytes = np.zeros(len(members), np.int64), task.capacity_bytes.numpy()
        np.add.at(item_bytes, item, task.table_bytes.numpy())
        for i in np.flatnonzero(members > 1).tolist():
            room = int(capacity_bytes[allowed[i]].max())
            if item_bytes[i] > room:
                label = " and ".join(sorted(set(names[item == i].tolist())))
                raise NoPlacementError(
                    f"tables {label} of {task.name} are to share a device and need {gib(int(item_bytes[i]))}, but the "
                    f"devices that may hold them have at most {gib(room)}"
                )
        return cls(item, item_bytes, capacity_bytes, allowed, apart)

    def per_table(self, device: Int[Tensor, " I"]) -> Int[Tensor, " T"]:
        """The device of each table."""
        return device[torch.from_numpy(self.item)]

    def summed(self, values: Float[Tensor, " T"]) -> Float[Tensor, " I"]:
        """Values of tables, summed over each item."""
        return values.new_zeros(len(self.item_bytes)).index_add_(0, torch.from_numpy(self.item), values)

    def repaired(self, device: Int[Tensor, " T"], load: Float[Tensor, " T"]) -> Int[Tensor, " T"] | None:
        """Devices of tables in a legal placement like `device`; None if none was found.

        Devices are renamed first, since they are mostly equal. Items that have the fewest devices to choose from come next,
        then the largest. Each stays where it is if it may, or else goes to the device of the least `load`.
        """
        load = self.summed(load)
        freedom = torch.from_numpy(self.allowed.sum(axis=1) - self.apart.sum(axis=1))
        by_size = torch.argsort(torch.from_numpy(self.item_bytes), descending=True, stable=True)
        order = by_size[torch.argsort(freedom[by_size], stable=True)]
        first = np.unique(self.item, return_index=True)[1]
        places = self._renamed(device.numpy()[first], load.double().numpy())

        def rank(loads: NDArray[np.float64], i: int) -> NDArray[np.float64]:
            loads = loads.copy()
            loads[places[i]] = -1.0
            return loads

        found = self.filled(order, rank, load)
        return None if found is None else self.per_table(found)

    def filled(self, order: Int[Tensor, " I"], rank: Rank, load: Float[Tensor, " I"]) -> Int[Tensor, " I"] | None:
        """Put each item in `order` on the allowed device with room and the least `rank`; None if there is none."""
        added = load.double().numpy()
        device = np.full(len(order), -1, np.int64)
        loads, left = np.zeros(len(self.capacity_bytes)), self.capacity_bytes.copy()
        for i in order.tolist():
            open_to = (left >= self.item_bytes[i]) & self.allowed[i]
            open_to[device[self.apart[i] & (device >= 0)]] = False
            if not open_to.any():
                return None
            choice = int(np.where(open_to, rank(loads, i), np.inf).argmin())
            device[i] = choice
            loads[choice] += added[i]
            left[choice] -= self.item_bytes[i]
        return torch.from_numpy(device)

    def _renamed(self, places: Indices, load: NDArray[np.float64]) -> Indices:
        """The same with devices renamed so that the least load is where it may not be or has no room."""
        num_devices = len(self.capacity_bytes)
        holds = np.zeros((num_devices, len(places)))
        holds[places, np.arange(len(places))] = 1.0
        held_bytes = np.bincount(places, weights=self.item_bytes, minlength=num_devices)
        over = held_bytes[:, None] > self.capacity_bytes  # [D, D] old, new
        amiss = holds @ (load[:, None] * ~self.allowed) + over * (holds @ load)[:, None]
        amiss -= 1e-9 * load.sum() * np.eye(num_devices)  # devices keep their names if that is as good
        _, renamed = scipy.optimize.linear_sum_assignment(amiss)
        result: Indices = renamed[places]
        return result


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
        answer = _solution(limits, parts, room)
        if answer.amounts is None:
            return answer if share == 1.0 else Packing(None)
        if (parts.held_bytes(answer.amounts) <= capacity).all():
            return answer
    return Packing(None)


def _solution(limits: PlacementLimits, parts: Parts, capacity_bytes: NDArray[np.int64]) -> Packing:
    """The packing that HiGHS finds, if it finds one.

    Variables are y `[I, D]`, whether a device has a part of an item, and x `[S, D]`, how many units of those that are split.
    """
    num_items, num_devices = limits.allowed.shape
    split, is_split = np.flatnonzero(parts.most > 1), parts.most > 1
    divisor = max(math.gcd(*(int(each) for each in (*parts.unit_bytes, *parts.base_bytes))), 1)
    scale = min(1.0, _SCALE / max(float(capacity_bytes.max() // divisor), 1.0))
    unit, base = (each / divisor * scale for each in (parts.unit_bytes, parts.base_bytes))
    on_devices, cells = scipy.sparse.eye_array(num_devices), num_items * num_devices
    chosen = scipy.sparse.csr_array((np.ones(len(split)), (np.arange(len(split)), split)), (len(split), num_items))
    no_x = scipy.sparse.csr_array((num_items, len(split) * num_devices))
    constraints: list[Any] = []

    def limit(of_y: Any, of_x: Any, low: Any, high: Any) -> None:
        constraints.append(scipy.optimize.LinearConstraint(scipy.sparse.hstack([of_y, of_x]).tocsr(), low, high))

    row = np.ones((1, num_devices))
    limit(scipy.sparse.kron(scipy.sparse.eye_array(num_items), row), no_x, 1, np.where(is_split, parts.most, 1))
    held = np.where(is_split, base, unit * parts.units + base)[None]
    of_y, of_x = (scipy.sparse.kron(each, on_devices) for each in (held, unit[None, split]))
    limit(of_y, of_x, 0, (capacity_bytes // divisor) * scale)
    first, second = np.nonzero(np.triu(limits.apart, 1))
    if len(first):
        pair = np.zeros((len(first), num_items))
        pair[np.arange(len(first)), first] = pair[np.arange(len(first)), second] = 1
        of_x = scipy.sparse.csr_array((len(first) * num_devices, len(split) * num_devices))
        limit(scipy.sparse.kron(pair, on_devices), of_x, 0, 1)
    if len(split):
        units, least, every = parts.units[split], parts.least[split], scipy.sparse.eye_array(len(split) * num_devices)
        of_y = scipy.sparse.csr_array((len(split), cells))
        limit(of_y, scipy.sparse.kron(scipy.sparse.eye_array(len(split)), row), units, units)
        for bound, low, high in ((units, -np.inf, 0), (least, 0, np.inf)):  # least y <= x <= units y
            limit(scipy.sparse.kron(-bound[:, None] * chosen, on_devices), every, low, high)
    upper = np.concatenate([_may_hold(limits, split).ravel(), np.repeat(parts.units[split], num_devices)])
    found: Any = scipy.optimize.milp(
        c=np.zeros(len(upper)),
        integrality=np.ones(len(upper)),
        bounds=scipy.optimize.Bounds(0, upper.astype(np.float64)),
        constraints=constraints,
        options={"node_limit": _NODES, "presolve": True},
    )
    if found.x is None:
        return Packing(None, is_impossible=found.status == 2)  # 2 is infeasible
    rounded = np.rint(found.x).astype(np.int64)
    amounts = rounded[:cells].reshape(num_items, num_devices)
    amounts[split] = rounded[cells:].reshape(-1, num_devices)
    return Packing(amounts)


def _may_hold(limits: PlacementLimits, split: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`[I, D]` devices that may hold an item; of devices that are alike, the largest items take the first ones."""
    allowed = limits.allowed.copy()
    alike = len(set(limits.capacity_bytes.tolist())) == 1 and bool(allowed.all())
    if alike and not len(split):
        for device, item in enumerate(np.argsort(-limits.item_bytes, kind="stable")[: allowed.shape[1]]):
            allowed[item, device + 1 :] = False
    return allowed
