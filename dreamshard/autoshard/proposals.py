"""Placements to measure for AutoShard's cost network: every device of one is a measured multi-table cost."""

import math
from dataclasses import replace

import torch

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask


def random_sets(task: PlacementTask, name: str, generator: torch.Generator) -> tuple[PlacementTask, Placement]:
    """Devices that hold random sets of the task's tables, as a task of those tables alone, and a placement of it.

    Sizes of sets are log-uniform between a single table and all tables that are left. A set ends before the first table
    that no longer fits its device.

    Args:
        name: of the new task.
    """
    order = torch.randperm(len(task.tables), generator=generator).tolist()
    table_bytes = task.table_bytes.tolist()
    chosen: list[int] = []
    device: list[int] = []
    sizes = torch.rand(task.num_devices, generator=generator).tolist()
    for d, (share, capacity) in enumerate(zip(sizes, task.capacity_bytes.tolist(), strict=True)):
        left = len(order) - len(chosen)
        size = math.floor(math.exp(share * math.log(left + 1))) if left else 0
        used = 0
        for t in order[len(chosen) : len(chosen) + size]:
            used += table_bytes[t]
            if used > capacity:
                break
            chosen.append(t)
            device.append(d)
    return replace(task, tables=task.tables.select(chosen), name=name), Placement.whole(
        torch.tensor(device), task.num_devices
    )
