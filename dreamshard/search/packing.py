"""Where tables may be by a task's constraints, whether they fit the devices' memory at all, and heuristics.

*Items* are placed: tables, or groups of tables that share a device. If greedy packing fails, packing is an integer
program, which HiGHS solves (`scipy.optimize.milp`). It is limited in nodes, not in time, so a task ends alike on any machine.

Heuristics place tables in descending order of one figure, each on the legal device with the smallest sum of it. The four
greedy ones are those of DreamShard's evaluation (section 4.1 of the paper, `sharders.py` of the authors' program), ties
included; `random` draws a legal device.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import scipy
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.cost_model.compiled import Floats, Ints, Mask, jit
from dreamshard.files import digest, gib, shown
from dreamshard.tables import DIM_MULTIPLE, WIDEST_SHARD, Columns, Placement, TableSharding, even_columns, most_ranges
from dreamshard.tasks import NoPlacementError, OrderedPlacer, PlacementTask, Shards, allowed_devices

_NODES = 1_000  # of branch and bound; small tasks need fewer than ten
_MOST_CELLS = 8_192  # items x devices; more would take minutes, and many items leave no need for it
_SCALE = 1e6  # of a device's capacity in the program, against the solver's tolerance of 1e-6


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
        first_group: `[I+1]` groups of tables to be kept apart that an item is in.
        groups: their numbers.
    """

    item: Ints
    first: Ints
    item_bytes: Ints
    capacity_bytes: Ints
    allowed: Mask
    parent: Ints
    first_group: Ints
    groups: Ints

    @classmethod
    def of(cls, task: PlacementTask) -> "PlacementLimits":
        """Limits of a task's tables.

        Raises:
            NoPlacementError: tables that are to be together fit no device, or are to be apart, too.
        """
        constraints, item, capacity = task.constraints, np.arange(len(task.tables)), task.capacity_bytes.numpy()
        names = np.array(task.tables.names)
        for group in constraints.together:
            held = np.isin(names, list(group))
            if held.any():
                joined = np.isin(item, item[held])
                item[joined] = item[joined].min()
        _, first, item = np.unique(item, return_index=True, return_inverse=True)
        allowed_of = allowed_devices(task).numpy()  # [T, D]
        allowed = allowed_of[first]
        item_bytes = np.bincount(item, task.table_bytes.numpy()).astype(np.int64)
        is_in = np.zeros((len(first), len(constraints.apart)), np.bool_)
        for g, group in enumerate(constraints.apart):
            is_in[item[np.isin(names, list(group))], g] = True
        for i in np.flatnonzero(np.bincount(item) > 1).tolist():
            of_item = item == i
            joint, allowed[i] = set(names[of_item].tolist()), allowed_of[of_item].all(axis=0)
            is_torn = any(len(group & joint) > 1 for group in constraints.apart)
            most = 0 if is_torn else int(capacity[allowed[i]].max(initial=0))
            if item_bytes[i] > most:
                raise NoPlacementError(
                    f"tables {' and '.join(sorted(joint))} of {task.name} are to share a device and need "
                    f"{gib(int(item_bytes[i]))}, but the devices that may hold them have at most {gib(most)}",
                    is_proved=True,
                )
        parent = np.unique(names, return_inverse=True)[1][first]
        first_group = np.append(0, np.cumsum(is_in.sum(axis=1)))
        groups = np.nonzero(is_in)[1].copy()  # contiguous, as compiled functions expect
        return cls(item, first, item_bytes, capacity, allowed, parent, first_group, groups)

    def filled(self, order: Ints, load: Floats, rank: Floats | None = None) -> Int[Tensor, " T"] | None:
        """Put each item on the device with the least load that may and can hold it; of equal ones, the emptiest.

        Args:
            order: `[T]` tables; items come in the order of their first ones.
            load: `[T]` that a table adds to its device; below 0 to fill one device after another.
            rank: `[T, D]` instead of the load.

        Returns:
            The device of each table; None if a table fits nowhere.
        """
        items, load_of = self.item[order], np.bincount(self.item, load).astype(np.float64)
        items = items[np.sort(np.unique(items, return_index=True)[1])]
        ranks = np.zeros((0, len(self.capacity_bytes))) if rank is None else rank[self.first]
        device = np.full(len(self.first), -1)
        owner = np.full((int(self.groups.max(initial=-1)) + 1, len(self.capacity_bytes)), -1)
        is_complete = _fill(
            items, load_of, ranks, self.item_bytes, self.capacity_bytes.copy(),
            self.allowed, self.parent, self.first_group, self.groups, owner, device,
        )  # fmt: skip
        return torch.from_numpy(device[self.item]) if is_complete else None


@jit
def _fill(
    items: Ints,
    load: Floats,
    rank: Floats,
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
            value = rank[i, d] if len(rank) else loads[d]
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
    """Largest table first, each on the emptiest device, or else on the fullest that can hold it; None if both fail."""
    size, limits = task.table_bytes.numpy(), PlacementLimits.of(task)
    order, load = np.argsort(-size, kind="stable"), size.astype(np.float64)
    device = limits.filled(order, load)
    return limits.filled(order, -load) if device is None else device


def packed(task: PlacementTask) -> Int[Tensor, " T"]:
    """The device of each table: by size, or else by an exact search.

    Raises:
        NoPlacementError: no placement of whole tables exists, or none was found within the limit of the search.
    """
    device = packed_by_size(task)
    if device is None:
        limits = PlacementLimits.of(task)
        device_of_item, is_impossible = pack(limits)
        if device_of_item is None:
            raise no_placement(task, is_proved=is_impossible)
        device = torch.from_numpy(device_of_item[limits.item])
    return device


def no_placement(task: PlacementTask, *, is_proved: bool = False, what: str = "whole tables") -> NoPlacementError:
    """The error that no placement was found; `is_proved` if none exists."""
    size, capacity, allowed = task.table_bytes.numpy(), task.capacity_bytes.numpy(), allowed_devices(task).numpy()
    held, room = size >= 0, capacity  # all tables, on all devices
    for devices in np.unique(allowed, axis=0):
        only_there = ~(allowed & ~devices).any(axis=1)  # [T]
        if size[only_there].sum() > capacity[devices].sum():
            held, room = only_there, capacity[devices]
    size, names = size[held], shown(np.array(task.tables.labels)[held].tolist())
    return NoPlacementError(
        f"found no placement of {what} of {task.name}: {names} of {gib(int(size.sum()))}, up to {gib(int(size.max()))} each, "
        f"may use {len(room)} of {len(capacity)} devices with {gib(int(room.sum()))}, up to {gib(int(room.max(initial=0)))} "
        "each; allow more memory, fewer constraints, or more sharding types (--sharding auto, --cache)",
        is_proved=is_proved or bool(size.sum() > room.sum()),
    )


def pack(limits: PlacementLimits) -> tuple[Ints | None, bool]:
    """The device of each item by an integer program; None if it found none, and whether it proved that there is none."""
    capacity, sizes = limits.capacity_bytes, limits.item_bytes
    if limits.allowed.size > _MOST_CELLS:
        return None, False
    if int(sizes.sum()) > int(capacity.sum()):
        return None, True
    for share in (1.0, 1 - 10 / _SCALE):  # less if rounding by the solver has overfilled a device
        device, is_impossible = _solution(limits, capacity if share == 1 else (capacity * share).astype(np.int64))
        if device is None:
            return None, is_impossible and share == 1
        if (np.bincount(device, sizes, len(capacity)) <= capacity).all():
            return device, False
    return None, False


def _solution(limits: PlacementLimits, capacity_bytes: Ints) -> tuple[Ints | None, bool]:
    """As `pack`, by HiGHS, up to rounding. The variables `[I, D]` say whether a device has an item."""
    num_items, num_devices = limits.allowed.shape
    divisor = max(math.gcd(*limits.item_bytes.tolist()), 1)
    scale = min(1.0, _SCALE / max(float(capacity_bytes.max() // divisor), 1.0)) / divisor
    kron, eye = scipy.sparse.kron, scipy.sparse.eye_array
    per_device, capacity = eye(num_devices), capacity_bytes // divisor * divisor * scale
    limit = scipy.optimize.LinearConstraint
    constraints = [
        limit(kron(eye(num_items), np.ones((1, num_devices))), 1, 1),
        limit(kron(scale * limits.item_bytes[None], per_device), 0, capacity),
    ]
    groups = [set(numbers) for numbers in np.split(limits.groups, limits.first_group[1:-1])]
    pairs = [
        (a, b)
        for a, b in combinations(range(num_items), 2)
        if groups[a] & groups[b] and limits.parent[a] != limits.parent[b]
    ]
    if pairs:
        constraints.append(limit(kron(np.eye(num_items)[np.array(pairs)].sum(axis=1), per_device), 0, 1))
    allowed = limits.allowed.copy()
    if len(set(capacity_bytes.tolist())) == 1 and allowed.all():  # of equal devices, the largest items take the first
        for device, item in enumerate(np.argsort(-limits.item_bytes, kind="stable")[:num_devices]):
            allowed[item, device + 1 :] = False
    solution: Any = scipy.optimize.milp(
        c=np.zeros(allowed.size),
        integrality=np.ones(allowed.size),
        bounds=scipy.optimize.Bounds(0, allowed.ravel().astype(np.float64)),
        constraints=constraints,
        options={"node_limit": _NODES, "presolve": True},
    )
    if solution.x is None:
        return None, solution.status == 2  # infeasible
    return solution.x.reshape(num_items, num_devices).argmax(axis=1), False


def split_by_columns(task: PlacementTask, parts: Int[Tensor, " T"]) -> PlacementTask:
    """The task with each table split into so many tables of about equally many columns.

    Raises:
        ValueError: a table has too few columns for that many parts.
    """
    tables = tuple(TableSharding("column_wise", ranges, (0,) * len(ranges)) for ranges in _columns(task, parts))
    return Shards.of(task, Placement(tables, task.num_devices, task.num_devices)).as_task()


def _columns(task: PlacementTask, parts: Int[Tensor, " T"]) -> list[Columns]:
    return [even_columns(dim, count) for dim, count in zip(task.tables.dim.tolist(), parts.tolist(), strict=True)]


def tight_splits(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Numbers of column shards of each table, the coarsest first: none larger than a device, half of one, and so on."""
    constraints, together = task.constraints, frozenset().union(*task.constraints.together)
    units = task.tables.dim // DIM_MULTIPLE  # [T] of four columns
    least, most, splits = -(-task.tables.dim // WIDEST_SHARD), torch.ones_like(units), []
    for t, name in enumerate(task.tables.names):
        types, dim = constraints.sharding_types_for(name), int(task.tables.dim[t])
        may_be_whole = "table_wise" in types
        on_one_device = len(constraints.pinned.get(name, (0, 0))) == 1 and may_be_whole
        if "column_wise" in types and not on_one_device and name not in together:
            most[t] = most_ranges(dim, constraints.narrowest_columns_of.get(name, 1))
        least[t] = max(int(least[t]), 2 - may_be_whole)
    every_shard = task.tables.rows * task.row_bytes  # [T] bytes, however few columns it has
    unit_bytes = (task.table_bytes - every_shard) // units
    for k in range(7):
        left = max(int(task.capacity_bytes.max()) // 2**k, 1) - every_shard
        fitting = torch.div(left, unit_bytes, rounding_mode="floor").clamp(min=1)
        splits.append(torch.minimum(torch.maximum((units + fitting - 1) // fitting, least), most))
    return splits


def packed_columns(task: PlacementTask) -> Placement:
    """Whole tables and column shards of equal widths, in as few shards as memory allows.

    Raises:
        NoPlacementError: none was found.
    """
    splits = tight_splits(task)
    for parts in splits:
        if (device := packed_by_size(split_by_columns(task, parts))) is not None:
            break
    else:
        parts = splits[0]
        try:
            device = packed(split_by_columns(task, parts))
        except NoPlacementError as error:
            raise no_placement(task, what="tables or columns") from error
    placed = zip(_columns(task, parts), device.split(parts.tolist()), strict=True)
    tables = tuple(TableSharding.by_columns(columns, where.tolist()) for columns, where in placed)
    return Placement(tables, task.num_devices, task.devices_per_host or task.num_devices)


HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
"""Names of the greedy heuristics; a placer has to beat the best of them on a set of tasks."""

_SEED_STEP = 0x9E3779B1  # odd, so that no two seeds give one generator


class HeuristicPlacer(OrderedPlacer):
    """Places whole tables one after another, and packs them if one fits nowhere; raises as `packed`."""

    name: str

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """See `OrderedPlacer`."""
        device = self.filled(task, PlacementLimits.of(task))
        return Placement.whole(packed(task) if device is None else device, task.num_devices)

    @abstractmethod
    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """The device of each table; None if a table fits nowhere."""


@dataclass(frozen=True)
class RandomPlacer(HeuristicPlacer):
    """A uniformly random legal device for each table; the same tables get the same placement, whatever the task's name."""

    seed: int = 0
    name: str = "random"

    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """See `HeuristicPlacer`."""
        tables = task.tables
        figures = (tables.rows, tables.dim, tables.pooling_factor, tables.lookups, tables.unique_rows)
        key = int(digest(b"".join(figure.numpy().tobytes() for figure in figures))[:8], 16) + task.num_devices
        generator = torch.Generator().manual_seed((key + self.seed * _SEED_STEP) % 2**32)  # it reads 32 bits of a seed
        rank = torch.rand(len(tables), task.num_devices, generator=generator).double().numpy()  # [T, D]
        order = torch.randperm(len(tables), generator=generator).numpy()
        return limits.filled(order, np.ones(len(tables)), rank=rank)


@dataclass(frozen=True)
class GreedyPlacer(HeuristicPlacer):
    """Descending by one figure per table, each to the legal device with the smallest sum of it.

    Of tables with the same figure the largest comes first, then the last one; of such devices the emptiest, then the first.
    """

    name: str
    orders_tables: ClassVar[bool] = False  # of equal tables the published heuristics take the last

    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """See `HeuristicPlacer`."""
        rows, dim = task.tables.rows.numpy(), task.tables.dim.numpy()
        lookup = dim * task.tables.pooling_factor.double().numpy()
        figures = ((rows * dim).astype(np.float64), dim.astype(np.float64), lookup, lookup * np.log10(rows))
        figure = figures[HEURISTICS.index(self.name)]  # [T]
        order = np.lexsort((np.arange(len(figure)), task.table_bytes.numpy(), figure))[::-1]
        return limits.filled(order, figure)


def baselines(seed: int = 0) -> dict[str, HeuristicPlacer]:
    """Random and the four heuristics, by name."""
    return {"random": RandomPlacer(seed)} | {name: GreedyPlacer(name) for name in HEURISTICS}
