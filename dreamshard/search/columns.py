"""Column shards by memory alone: how many constraints and sizes ask for, and an exact search for some that fit."""

from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import ON_ONE_DEVICE, Placement, TableSharding, most_ranges
from dreamshard.placer import NoPlacementError
from dreamshard.search.baselines import no_room
from dreamshard.search.packing import Parts, PlacementLimits, pack_parts
from dreamshard.shards import violation
from dreamshard.tables import DIM_MULTIPLE, parent_name
from dreamshard.tasks import PlacementTask


def allowed_parts(task: PlacementTask) -> tuple[Int[Tensor, " T"], Int[Tensor, " T"]]:
    """The fewest and the most column shards of each table in device memory that the task's constraints allow.

    Raises:
        NoPlacementError: a table may be neither whole nor split by columns, or is to be whole and split, or in host memory.
    """
    constraints = task.constraints
    least, most = column_limits(task)
    if constraints.sharding_types == ON_ONE_DEVICE and not constraints.tables_named():
        return least, most
    for t, name in enumerate(map(parent_name, task.tables.names)):
        types = constraints.sharding_types_for(name)
        if not set(types) & set(ON_ONE_DEVICE):
            raise NoPlacementError(
                f"table {name!r} may only be sharded {' or '.join(types)}, but a placement of whole tables and columns was "
                "asked for; allow table_wise or column_wise, or use what takes every way to shard"
            )
        if name in constraints.cached_share_of:
            raise NoPlacementError(
                f"table {name!r} is to be in host memory, but a placement in device memory was asked for; use what takes "
                "every way to shard"
            )
        if int(least[t]) > int(most[t]):
            raise NoPlacementError(
                f"table {name!r} may only be split by columns, but other constraints (together, or the narrowest "
                "columns of a shard) keep it whole; allow table_wise, or drop those"
            )
    return least, most


def column_limits(task: PlacementTask) -> tuple[Int[Tensor, " T"], Int[Tensor, " T"]]:
    """The fewest and the most column shards of each table by its constraints; more than the most where they contradict."""
    constraints = task.constraints
    least, most = torch.ones(len(task.tables), dtype=torch.int64), (task.tables.dim // DIM_MULTIPLE).clamp(min=1)
    if constraints.sharding_types == ON_ONE_DEVICE and not constraints.tables_named():
        return least, most
    together = frozenset().union(*constraints.together)
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


def needed_parts(task: PlacementTask, largest_bytes: int) -> Int[Tensor, " T"]:
    """The fewest shards of each table such that none exceeds `largest_bytes`, as far as its columns allow.

    A shard holds its columns' weights and all of the optimizer's state per row, if there is one.
    """
    units = task.tables.dim // DIM_MULTIPLE  # [T]
    unit_bytes = task.tables.rows * DIM_MULTIPLE * (task.weight_bytes + task.element_state_bytes)  # [T] of four columns
    room = largest_bytes - task.tables.rows * task.row_bytes  # [T]
    columns = torch.div(room, unit_bytes, rounding_mode="floor").clamp(min=1)  # [T] units that fit
    return torch.minimum((units + columns - 1) // columns, units)


def fits_together(task: PlacementTask, parts: Int[Tensor, " T"]) -> bool:
    """Whether the shards fit the memory of all devices together; each repeats its table's state per row."""
    repeated = (parts - 1) * task.tables.rows * task.row_bytes
    return int((task.table_bytes + repeated).sum()) <= int(task.capacity_bytes.double().sum())


def tight_splits(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Splits by size alone, the coarsest first, for tasks whose memory is too tight for large shards."""
    least, limit = allowed_parts(task)
    largest = int(task.capacity_bytes.max())
    proposals = [needed_parts(task, max(largest // 2**k, 1)).clamp(min=least).clamp(max=limit) for k in range(7)]
    return [parts for parts in proposals if fits_together(task, parts)]


def packed_columns(task: PlacementTask) -> Placement:
    """A legal placement of whole tables and column shards, of any widths.

    Raises:
        NoPlacementError: none exists, or none was found within the limit of the search.
    """
    limits = PlacementLimits.of(task)
    packing = pack_parts(limits, _parts(task, limits))
    if packing.amounts is None:
        raise no_room(task, is_proved=packing.is_impossible, columns=True)
    shardings: list[TableSharding] = []
    least, _ = allowed_parts(task)
    for t, dim in enumerate(task.tables.dim.tolist()):
        amounts = packing.amounts[limits.item[t]]
        held_by = np.flatnonzero(amounts)
        widths = [DIM_MULTIPLE * int(amounts[d]) for d in held_by]
        if len(held_by) == 1 and int(least[t]) > 1:  # it may not be whole, but both halves may be on one device
            half = dim // DIM_MULTIPLE // 2 * DIM_MULTIPLE
            held_by, widths = held_by.repeat(2), [half, dim - half]
        ends = [0, *np.cumsum(widths).tolist()]
        shardings.append(TableSharding.by_columns(tuple(pairwise(ends)), held_by.tolist()))
    placement = Placement(tuple(shardings), task.num_devices, task.devices_per_host or task.num_devices)
    if violation(task, placement):  # halves on one device need its state per row twice
        raise no_room(task, columns=True)
    return placement


def _parts(task: PlacementTask, limits: PlacementLimits) -> Parts:
    """Tables by columns, as far as they may be split; tables that are to be together are whole."""
    _, most = allowed_parts(task)
    whole = Parts.whole(limits.item_bytes)
    members = np.bincount(limits.item)
    tables = task.tables
    unit_bytes = (tables.rows * DIM_MULTIPLE * (task.weight_bytes + task.element_state_bytes)).numpy()
    base_bytes = (tables.rows * task.row_bytes).numpy()
    for t, name in enumerate(map(parent_name, tables.names)):
        i = limits.item[t]
        devices = min(int(most[t]), task.num_devices)
        if members[i] > 1 or devices == 1:
            continue
        whole.units[i], whole.unit_bytes[i], whole.base_bytes[i] = (
            int(tables.dim[t]) // DIM_MULTIPLE,
            unit_bytes[t],
            base_bytes[t],
        )
        whole.least[i] = -(-task.constraints.narrowest_columns_of.get(name, DIM_MULTIPLE) // DIM_MULTIPLE)
        whole.most[i] = devices
    return whole
