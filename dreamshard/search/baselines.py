"""Rules of thumb: place tables in descending order of one figure, each on the legal device with the least of it.

The four greedy rules are those of DreamShard's evaluation (section 4.1 of the paper, `sharders.py` of the authors' program),
ties included; `random` draws a legal device. Tables that are to be together count as one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.files.digests import digest
from dreamshard.files.text import gib
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, OrderedPlacer, table_order
from dreamshard.search.packing import PlacementLimits, pack_whole
from dreamshard.tasks import PlacementTask

RULES_OF_THUMB = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
"""Names of the greedy rules; a placer has to beat the best of them on a set of tasks."""

_SPREAD = 0x9E3779B1  # odd, so that no two seeds give one generator


@dataclass(frozen=True)
class RandomPlacer(OrderedPlacer):
    """A uniformly random legal device for each table; the same tables get the same placement, whatever the task's name."""

    seed: int = 0
    name: str = "random"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Where random order finds no room, as `packed` does, whose error it raises."""
        device = self.filled(task)
        return Placement.whole(device if device is not None else packed(task), task.num_devices)

    def filled(self, task: PlacementTask) -> Int[Tensor, " T"] | None:
        """The device of each table; None where a table finds no room or no place within the constraints."""
        tables = task.tables
        figures = (tables.rows, tables.dim, tables.pooling_factor, tables.lookups, tables.unique_rows)
        key = int(digest(b"".join(figure.numpy().tobytes() for figure in figures), 8), 16) + task.num_devices
        generator = torch.Generator().manual_seed((key + self.seed * _SPREAD) % 2**32)  # it reads 32 bits of a seed
        priority = torch.rand(len(task.tables), task.num_devices, generator=generator).double().numpy()  # [T, D]
        order = torch.randperm(len(task.tables), generator=generator)
        return _fill(task, order, lambda _loads, t: priority[t], torch.ones(len(task.tables)))


@dataclass(frozen=True)
class GreedyPlacer(OrderedPlacer):
    """Descending by one figure per table, each to the legal device with the least of it.

    Of tables with the same figure the largest comes first, then the last one; of such devices the emptiest, then the first.
    """

    name: str
    orders_tables: ClassVar[bool] = False  # of equal tables the published rules take the last

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Where this order finds no room, as `packed` does, whose error it raises."""
        device = self.filled(task)
        return Placement.whole(device if device is not None else packed(task), task.num_devices)

    def filled(self, task: PlacementTask) -> Int[Tensor, " T"] | None:
        """The device of each table; None where a table finds no room or no place within the constraints."""
        rows, dim = task.tables.rows.numpy(), task.tables.dim.numpy()
        lookup = dim * task.tables.pooling_factor.double().numpy()
        figures = ((rows * dim).astype(np.float64), dim.astype(np.float64), lookup, lookup * np.log10(rows))
        figure = dict(zip(RULES_OF_THUMB, figures, strict=True))[self.name]  # [T]
        order = np.lexsort((np.arange(len(figure)), task.table_bytes.numpy(), figure))[::-1].copy()
        return _fill(task, torch.from_numpy(order), lambda loads, _t: loads, torch.from_numpy(figure))


def baselines(seed: int = 0) -> dict[str, RandomPlacer | GreedyPlacer]:
    """Random and the four rules of thumb, by name."""
    placers: list[RandomPlacer | GreedyPlacer] = [RandomPlacer(seed), *(GreedyPlacer(name) for name in RULES_OF_THUMB)]
    return {placer.name: placer for placer in placers}


def rule_placements(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Those of random and of the rules of thumb, to start a search from; by size for each that finds no room."""
    found = [placer.filled(task) for placer in baselines().values()]
    by_size = packed_by_size(task) if any(device is None for device in found) else None
    placed = [by_size if device is None else device for device in found]
    return [device for device in placed if device is not None]


def packed(task: PlacementTask) -> Int[Tensor, " T"]:
    """The device of each table: by size, or else by an exact search (`packing.py`), whatever the order of the tables.

    Raises:
        NoPlacementError: no placement of whole tables exists, or none was found within the limit of the search.
    """
    order = table_order(task.tables)
    return _packed(replace(task, tables=task.tables.select(order)))[order.argsort()]


def _packed(task: PlacementTask) -> Int[Tensor, " T"]:
    device = packed_by_size(task)
    if device is not None:
        return device
    limits = PlacementLimits.of(task)
    packing = pack_whole(limits)
    if packing.device is None:
        raise no_room(task, is_proved=packing.is_impossible)
    return limits.per_table(torch.from_numpy(packing.device))


def packed_by_size(task: PlacementTask) -> Int[Tensor, " T"] | None:
    """Largest table first, each on the emptiest device that has room, or else on the fullest; None where neither has."""
    size = task.table_bytes
    order = torch.argsort(size, descending=True, stable=True)
    device = _fill(task, order, lambda loads, _t: loads, size.double())
    if device is None:
        device = _fill(task, order, lambda loads, _t: -loads, size.double())
    return device


def no_room(task: PlacementTask, *, is_proved: bool = False, columns: bool = False) -> NoPlacementError:
    """The error that no placement was found.

    Args:
        is_proved: whether none exists.
        columns: whether tables could be split by columns.
    """
    size, room = task.table_bytes, task.capacity_bytes
    largest = int(size.argmax())
    devices = (
        gib(int(room.max())) if bool((room == room[0]).all()) else f"{gib(int(room.min()))} to {gib(int(room.max()))}"
    )
    what = "whole tables or columns" if columns else "whole tables"
    free = task.constraints.places_freely
    within = "" if free else " within its constraints"
    known = "and none exists" if is_proved else "though one may exist"
    loosen = "" if free else "loosen the constraints, "
    otherwise = "or allow other ways to shard" if columns else "or use a placer that splits tables by columns"
    if int(size.sum()) > sum(room.tolist()):
        otherwise = f"since all devices together have {gib(sum(room.tolist()))}"
    return NoPlacementError(
        f"found no placement of {what} for the {len(task.tables)} tables of {task.name} on {task.num_devices} devices of "
        f"{devices}{within}, {known}: they need {gib(int(size.sum()))} in all, the largest ({task.tables.names[largest]!r}) "
        f"{gib(int(size[largest]))}; give the devices more memory, add one, {loosen}{otherwise}"
    )


def _fill(
    task: PlacementTask,
    order: Int[Tensor, " T"],
    rank: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    load: Float[Tensor, " T"],
) -> Int[Tensor, " T"] | None:
    """Put each table in `order` on the device with the least `rank` that has room; None where none has.

    Of devices of the same rank the one with the most room is taken.
    """
    if not task.constraints.places_freely:
        return _fill_within(PlacementLimits.of(task), order, rank, load)
    table_bytes, added = task.table_bytes.numpy(), load.double().numpy()
    device = np.full(len(order), -1, np.int64)
    loads = np.zeros(task.num_devices)
    left = np.full(task.num_devices, task.memory_bytes, np.int64)
    for t in order.tolist():
        ranks = np.where(left >= table_bytes[t], rank(loads, t), np.inf)
        choice = int(np.where(ranks == ranks.min(), left, -1).argmax())
        if left[choice] < table_bytes[t]:
            return None
        device[t] = choice
        loads[choice] += added[t]
        left[choice] -= table_bytes[t]
    return torch.from_numpy(device)


def _fill_within(
    limits: PlacementLimits,
    order: Int[Tensor, " T"],
    rank: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    load: Float[Tensor, " T"],
) -> Int[Tensor, " T"] | None:
    """The same where tables may not be anywhere: items in the order of their first tables."""
    first = [int(np.flatnonzero(limits.item == i)[0]) for i in range(len(limits.item_bytes))]
    items = list(dict.fromkeys(limits.item[order.numpy()].tolist()))
    device = limits.filled(torch.tensor(items), lambda loads, i: rank(loads, first[i]), limits.summed(load.double()))
    return None if device is None else limits.per_table(device)
