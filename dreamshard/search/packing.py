"""Where whole tables may be by a task's constraints, and whether tables fit the devices' memory at all.

*Items* are placed: tables, or groups of tables that share a device. If no rule of thumb finds room, packing is an integer
program, which HiGHS solves (`scipy.optimize.milp`): which item is on which device, and how many of its columns if tables may
be split. The search is limited in nodes, not in time, so a task ends alike on any machine.
"""

import math
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.compiled import Floats, Ints, jit
from dreamshard.files.text import gib
from dreamshard.placement import Placement, TableSharding, most_ranges
from dreamshard.placer import NoPlacementError, table_order
from dreamshard.shards import allowed_devices, violation
from dreamshard.tables import DIM_MULTIPLE, parent_name
from dreamshard.tasks import PlacementTask

Mask = NDArray[np.bool_]

_NODES = 1_000  # of branch and bound; small tasks need fewer than ten
_MOST_CELLS = 8_192  # items x devices; more would take minutes, and many items leave no need for it
_SCALE = 1e6  # of a device's capacity in the program, against the solver's tolerance of 1e-6
_SHRUNK = 1 - 1e-5  # of the capacity, if rounding by the solver has overfilled a device


@dataclass(frozen=True)
class PlacementLimits:
    """Where `I` items may be.

    Attributes:
        item: `[T]` the item of each table.
        first: `[I]` the first table of each item.
        item_bytes: `[I]`.
        capacity_bytes: `[D]`.
        allowed: `[I, D]` devices that may hold an item.
        parent: `[I]` number of the table that an item is, or is columns of.
        groups: of each item, numbers of the groups of tables to be kept apart that it is in.
    """

    item: Ints
    first: Ints
    item_bytes: Ints
    capacity_bytes: Ints
    allowed: Mask
    parent: Ints
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, task: PlacementTask) -> "PlacementLimits":
        """Limits of a task's tables.

        Raises:
            NoPlacementError: no device has room for tables that are to be together, or they are to be apart, too.
        """
        constraints, item, capacity = task.constraints, np.arange(len(task.tables)), task.capacity_bytes.numpy()
        if constraints.places_freely:
            free = np.ones((len(item), task.num_devices), np.bool_)
            return cls(item, item, task.table_bytes.numpy(), capacity, free, item, ((),) * len(item))
        names = np.array([parent_name(name) for name in task.tables.names])
        for group in constraints.together:
            held = np.isin(names, list(group))
            if held.any():
                joined = np.isin(item, item[held])
                item[joined] = item[joined].min()
        _, first, item = np.unique(item, return_index=True, return_inverse=True)
        allowed = np.ones((len(first), task.num_devices), np.bool_)
        np.logical_and.at(allowed, item, allowed_devices(task).numpy())
        item_bytes = np.zeros(len(first), np.int64)
        np.add.at(item_bytes, item, task.table_bytes.numpy())
        groups: list[set[int]] = [set() for _ in first]
        for g, group in enumerate(constraints.apart):
            for i in item[np.isin(names, list(group))].tolist():
                groups[i].add(g)
        for i in np.flatnonzero(np.bincount(item) > 1).tolist():
            is_torn = any(len(group & set(names[item == i].tolist())) > 1 for group in constraints.apart)
            room = 0 if is_torn else int(capacity[allowed[i]].max(initial=0))
            if item_bytes[i] > room:
                label = " and ".join(sorted(set(names[item == i].tolist())))
                raise NoPlacementError(
                    f"tables {label} of {task.name} are to share a device and need {gib(int(item_bytes[i]))}, but the "
                    f"devices that may hold them have at most {gib(room)}"
                )
        parent = np.unique(names, return_inverse=True)[1][first]
        return cls(item, first, item_bytes, capacity, allowed, parent, tuple(tuple(sorted(each)) for each in groups))

    def filled(
        self,
        order: Ints,
        load: Floats,
        *,
        descending: bool = False,
        rank: Floats | None = None,
        wanted: Ints | None = None,
    ) -> Int[Tensor, " T"] | None:
        """Put each item on the device with the least load that may hold it and has room, or the most room among equal ones.

        Args:
            order: `[T]` tables; items come in the order of their first ones.
            load: `[T]` that a table adds to its device.
            descending: take the most load instead.
            rank: `[T, D]` instead of the load.
            wanted: `[I]` devices that come before all others.

        Returns:
            The device of each table; None if a table finds no room.
        """
        items, load_of = self.item[order], np.bincount(self.item, load).astype(np.float64)
        items = items[np.sort(np.unique(items, return_index=True)[1])]
        ranks = np.zeros((0, len(self.capacity_bytes))) if rank is None else rank[self.first]
        device = np.full(len(self.first), -1)
        first_group = np.cumsum([0, *map(len, self.groups)])
        groups = np.array([g for own in self.groups for g in own], np.int64)
        owner = np.full((int(groups.max(initial=-1)) + 1, len(self.capacity_bytes)), -1)
        found = _fill(
            items, load_of, -1.0 if descending else 1.0, ranks, device.copy() if wanted is None else wanted,
            self.item_bytes, self.capacity_bytes.copy(), self.allowed, self.parent, first_group, groups, owner, device,
        )  # fmt: skip
        return torch.from_numpy(device[self.item]) if found else None

    def repaired(self, device: Int[Tensor, " T"], load: Floats) -> Int[Tensor, " T"] | None:
        """Devices of tables in a legal placement like `device`; None if none was found.

        Items that have the fewest devices to choose from come first, then the largest. Each stays where it is if it may, or
        else goes to the device of the least `load`.
        """
        freedom = self.allowed.sum(axis=1) - [len(each) for each in self.groups]
        order = np.lexsort((-self.item_bytes, freedom))
        return self.filled(self.first[order], load, wanted=device.numpy()[self.first])


@jit
def _fill(
    items: Ints,
    load: Floats,
    sign: float,
    rank: Floats,
    wanted: Ints,
    size: Ints,
    left: Ints,
    allowed: Mask,
    parent: Ints,
    first_group: Ints,
    groups: Ints,
    owner: Ints,
    device: Ints,
) -> bool:
    loads = np.zeros(len(left))
    for i in items:
        best, least = -1, 0.0
        for d in range(len(left)):
            fits = allowed[i, d] and left[d] >= size[i]
            for g in range(first_group[i], first_group[i + 1]):
                fits = fits and (owner[groups[g], d] < 0 or owner[groups[g], d] == parent[i])
            if not fits:
                continue
            value = rank[i, d] if len(rank) else sign * loads[d]
            if d == wanted[i]:
                value = -np.inf
            if best < 0 or value < least or (value == least and left[d] > left[best]):
                best, least = d, value
        if best < 0:
            return False
        device[i] = best
        loads[best] += load[i]
        left[best] -= size[i]
        for g in range(first_group[i], first_group[i + 1]):
            owner[groups[g], best] = parent[i]
    return True


def packed_by_size(task: PlacementTask) -> Int[Tensor, " T"] | None:
    """Largest table first, each on the emptiest device that has room, or else on the fullest; None if neither has."""
    size, limits = task.table_bytes.numpy(), PlacementLimits.of(task)
    order, load = np.argsort(-size, kind="stable"), size.astype(np.float64)
    found = limits.filled(order, load)
    return limits.filled(order, load, descending=True) if found is None else found


def packed(task: PlacementTask) -> Int[Tensor, " T"]:
    """The device of each table: by size, or else by an exact search, whatever the order of the tables.

    Raises:
        NoPlacementError: no placement of whole tables exists, or none was found within the limit of the search.
    """
    order = table_order(task.tables)
    ordered = replace(task, tables=task.tables.select(order))
    device = packed_by_size(ordered)
    if device is None:
        limits = PlacementLimits.of(ordered)
        packing = pack(limits, Parts.whole(limits.item_bytes))
        if packing.amounts is None:
            raise no_room(task, is_proved=packing.is_impossible)
        device = torch.from_numpy(packing.amounts.argmax(axis=1)[limits.item])
    return device[order.argsort()]


def no_room(task: PlacementTask, *, is_proved: bool = False, columns: bool = False) -> NoPlacementError:
    """The error that no placement was found.

    Args:
        is_proved: whether none exists.
        columns: whether tables could be split by columns.
    """
    size, room, free = task.table_bytes, task.capacity_bytes.tolist(), task.constraints.places_freely
    largest, least, most = int(size.argmax()), gib(min(room)), gib(max(room))
    what = "whole tables or columns" if columns else "whole tables"
    otherwise = "or allow other ways to shard" if columns else "or use a placer that splits tables by columns"
    if int(size.sum()) > sum(room):
        otherwise = f"since all devices together have {gib(sum(room))}"
    return NoPlacementError(
        f"found no placement of {what} for the {len(task.tables)} tables of {task.name} on {task.num_devices} devices of "
        f"{least if least == most else f'{least} to {most}'}{'' if free else ' within its constraints'}, "
        f"{'and none exists' if is_proved else 'though one may exist'}: they need {gib(int(size.sum()))} in all, the largest "
        f"({task.tables.names[largest]!r}) {gib(int(size[largest]))}; give the devices more memory, add one, "
        f"{'' if free else 'loosen the constraints, '}{otherwise}"
    )


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

    units: Ints
    unit_bytes: Ints
    base_bytes: Ints
    least: Ints
    most: Ints

    @classmethod
    def whole(cls, item_bytes: Ints) -> "Parts":
        """Of items that stay whole."""
        units, least, most = (np.ones_like(item_bytes) for _ in range(3))
        return cls(units=units, unit_bytes=item_bytes.copy(), base_bytes=np.zeros_like(units), least=least, most=most)


@dataclass(frozen=True)
class Packing:
    """What is known about a task.

    Attributes:
        amounts: `[I, D]` units of each item on each device; None if no packing was found.
        is_impossible: whether none exists; False also if the search was ended before that was known.
    """

    amounts: Ints | None
    is_impossible: bool = False


def pack(limits: PlacementLimits, parts: Parts) -> Packing:
    """Items, each in as many parts as is allowed."""
    if limits.allowed.size > _MOST_CELLS:
        return Packing(None)
    capacity = limits.capacity_bytes
    if int((parts.units * parts.unit_bytes + parts.base_bytes).sum()) > int(capacity.sum()):
        return Packing(None, is_impossible=True)
    for share in (1.0, _SHRUNK):
        room = capacity if share == 1.0 else np.floor(capacity * share).astype(np.int64)
        answer = _solution(limits, parts, room)
        if answer.amounts is None:
            return answer if share == 1.0 else Packing(None)
        held = parts.unit_bytes @ answer.amounts + parts.base_bytes @ (answer.amounts > 0)
        if (held <= capacity).all():
            return answer
    return Packing(None)


def _solution(limits: PlacementLimits, parts: Parts, capacity_bytes: Ints) -> Packing:
    """The packing that HiGHS finds, if it finds one.

    Variables are y `[I, D]`, whether a device has a part of an item, and x `[S, D]`, how many units of those that are split.
    """
    num_items, num_devices = limits.allowed.shape
    is_split, split = parts.most > 1, np.flatnonzero(parts.most > 1)
    divisor = max(math.gcd(*(int(each) for each in (*parts.unit_bytes, *parts.base_bytes))), 1)
    scale = min(1.0, _SCALE / max(float(capacity_bytes.max() // divisor), 1.0))
    unit, base = (each / divisor * scale for each in (parts.unit_bytes, parts.base_bytes))
    kron, eye = scipy.sparse.kron, scipy.sparse.eye_array
    constraints: list[Any] = []

    def limit(of_y: Any, of_x: Any, low: Any, high: Any, across: Any) -> None:
        """Bound sums of y and x, of some items each, `across` devices or on each one."""
        of_x = scipy.sparse.csr_array((of_y.shape[0], len(split))) if of_x is None else of_x
        both = scipy.sparse.hstack([kron(of_y, across), kron(of_x, across)]).tocsr()
        constraints.append(scipy.optimize.LinearConstraint(both, low, high))

    row, each = np.ones((1, num_devices)), eye(num_devices)
    limit(eye(num_items), None, 1, np.where(is_split, parts.most, 1), row)
    held = np.where(is_split, base, unit * parts.units + base)
    limit(held[None], unit[None, split], 0, (capacity_bytes // divisor) * scale, each)
    pairs = [
        (a, b)
        for a, b in combinations(range(num_items), 2)
        if set(limits.groups[a]) & set(limits.groups[b]) and limits.parent[a] != limits.parent[b]
    ]
    if pairs:
        limit(sum(np.eye(num_items)[list(side)] for side in zip(*pairs, strict=True)), None, 0, 1, each)
    if len(split):
        chosen = np.eye(num_items)[split]
        limit(0 * chosen, eye(len(split)), parts.units[split], parts.units[split], row)
        for bound, low, high in ((parts.units, -np.inf, 0), (parts.least, 0, np.inf)):  # least y <= x <= units y
            limit(-bound[split, None] * chosen, eye(len(split)), low, high, each)
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
    amounts = np.rint(found.x).astype(np.int64).reshape(-1, num_devices)
    amounts[split] = amounts[num_items:]
    return Packing(amounts[:num_items])


def _may_hold(limits: PlacementLimits, split: Ints) -> Mask:
    """`[I, D]` devices that may hold an item; of devices that are alike, the largest items take the first ones."""
    allowed = limits.allowed.copy()
    if len(set(limits.capacity_bytes.tolist())) == 1 and allowed.all() and not len(split):
        for device, item in enumerate(np.argsort(-limits.item_bytes, kind="stable")[: allowed.shape[1]]):
            allowed[item, device + 1 :] = False
    return allowed


def column_limits(task: PlacementTask) -> tuple[Int[Tensor, " T"], Int[Tensor, " T"]]:
    """The fewest and the most column shards of each table by its constraints."""
    constraints, together = task.constraints, frozenset().union(*task.constraints.together)
    least, most = torch.ones(len(task.tables), dtype=torch.int64), (task.tables.dim // DIM_MULTIPLE).clamp(min=1)
    for t, name in enumerate(map(parent_name, task.tables.names)):
        types = constraints.sharding_types_for(name)
        if name in constraints.narrowest_columns_of:
            most[t] = most_ranges(int(task.tables.dim[t]), constraints.narrowest_columns_of[name])
        on_one_device = len(constraints.pinned.get(name, (0, 0))) == 1 and "table_wise" in types
        if name in together or on_one_device or "column_wise" not in types:
            most[t] = 1
        if "table_wise" not in types:
            least[t] = 2
    return least, most


def fits_together(task: PlacementTask, parts: Int[Tensor, " T"]) -> bool:
    """Whether the shards fit the memory of all devices together; each repeats its table's state per row."""
    repeated = (parts - 1) * task.tables.rows * task.row_bytes
    return int((task.table_bytes + repeated).sum()) <= int(task.capacity_bytes.double().sum())


def tight_splits(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Splits by size alone, the coarsest first, for tasks whose memory is too tight for large shards."""
    least, most = column_limits(task)
    units, rows, found = task.tables.dim // DIM_MULTIPLE, task.tables.rows, []  # [T] of four columns
    unit_bytes = rows * DIM_MULTIPLE * (task.weight_bytes + task.element_state_bytes)
    for k in range(7):
        room = max(int(task.capacity_bytes.max()) // 2**k, 1) - rows * task.row_bytes
        fitting = torch.div(room, unit_bytes, rounding_mode="floor").clamp(min=1)
        parts = torch.minimum(torch.maximum((units + fitting - 1) // fitting, least), most)
        if fits_together(task, parts):
            found.append(parts)
    return found


def packed_columns(task: PlacementTask) -> Placement:
    """A legal placement of whole tables and column shards, of any widths.

    Raises:
        NoPlacementError: none exists, or none was found within the limit of the search.
    """
    limits, tables, (least, most) = PlacementLimits.of(task), task.tables, column_limits(task)
    parts, members = Parts.whole(limits.item_bytes), np.bincount(limits.item)
    unit_bytes = (tables.rows * DIM_MULTIPLE * (task.weight_bytes + task.element_state_bytes)).numpy()
    for t, name in enumerate(map(parent_name, tables.names)):
        i, devices = limits.item[t], min(int(most[t]), task.num_devices)
        if members[i] == 1 and devices > 1:
            parts.units[i], parts.unit_bytes[i] = int(tables.dim[t]) // DIM_MULTIPLE, unit_bytes[t]
            parts.base_bytes[i], parts.most[i] = int((tables.rows * task.row_bytes)[t]), devices
            parts.least[i] = -(-task.constraints.narrowest_columns_of.get(name, DIM_MULTIPLE) // DIM_MULTIPLE)
    packing = pack(limits, parts)
    if packing.amounts is None:
        raise no_room(task, is_proved=packing.is_impossible, columns=True)
    shardings: list[TableSharding] = []
    for t, dim in enumerate(tables.dim.tolist()):
        held_by = np.flatnonzero(packing.amounts[limits.item[t]])
        widths = (DIM_MULTIPLE * packing.amounts[limits.item[t], held_by]).tolist()
        if len(held_by) == 1:
            widths = [dim]
            if int(least[t]) > 1:  # it may not be whole, but both halves may be on one device
                half = dim // DIM_MULTIPLE // 2 * DIM_MULTIPLE
                held_by, widths = held_by.repeat(2), [half, dim - half]
        ends = [0, *np.cumsum(widths).tolist()]
        shardings.append(TableSharding.by_columns(tuple(pairwise(ends)), held_by.tolist()))
    placement = Placement(tuple(shardings), task.num_devices, task.devices_per_host or task.num_devices)
    if violation(task, placement):  # halves on one device need its state per row twice
        raise no_room(task, columns=True)
    return placement
