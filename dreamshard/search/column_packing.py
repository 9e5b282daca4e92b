"""Whether tables fit if they may be split by columns: an exact search, for where no even split finds room."""

from itertools import pairwise

import numpy as np

from dreamshard.baselines import no_room
from dreamshard.legality import violation
from dreamshard.limits import PlacementLimits
from dreamshard.packing import Parts, pack_parts
from dreamshard.placement import Placement, TableSharding
from dreamshard.search.column_splits import allowed_parts
from dreamshard.tables import DIM_MULTIPLE, parent_name
from dreamshard.tasks import PlacementTask


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
