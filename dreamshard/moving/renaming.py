"""Other names for equal devices, so that less moves between two placements.

Devices of one host are alike, and so are hosts of the same size, which is all that a step's cost depends on: swapping two of
them changes nothing but their names. A device only gets the name of one that has as much room, may hold the same tables by
the constraints, and holds blocks as large of tables spread by rows: those stay where they are.
Both choices are assignment problems: of devices to devices for each pair of hosts, then of hosts to hosts.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from dreamshard.legality import allowed_devices, violation
from dreamshard.moving.blocks import Block, Blocks, blocks_of
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, Placement, row_blocks
from dreamshard.tasks import PlacementTask

Matrix = NDArray[np.float64]

_EQUAL_BLOCKS = 0.01  # of a block: the last one of a large table is often a few rows smaller


def renamed(task: PlacementTask, placement: Placement, before: Blocks) -> Placement:
    """The placement with those names of devices and hosts that keep the most bytes where they are.

    Args:
        task: whose constraints may name devices.
        placement: of the task's tables, legal.
        before: blocks in use, by table.

    Returns:
        A legal placement of the same cost, but for blocks of rows that differ by less than a hundredth.
    """
    names = _names(task, placement, before)
    shardings = []
    for sharding in placement.tables:
        where = sharding.where
        if sharding.sharding_type in ON_ONE_DEVICE:
            where = tuple(names.device[place] for place in where)
        elif sharding.sharding_type in ON_ONE_HOST:
            where = tuple(names.host[place] for place in where)
        shardings.append(replace(sharding, where=where))
    result = replace(placement, tables=tuple(shardings))
    return placement if violation(task, result) else result  # the last block of rows is smaller, so room may differ


class _Names:
    """New names: `device[d]` is that of device `d`, `host[h]` that of host `h`."""

    def __init__(self, device: list[int], host: list[int]) -> None:
        self.device, self.host = device, host


def _names(task: PlacementTask, placement: Placement, before: Blocks) -> _Names:
    per_host, num_devices, num_hosts = placement.devices_per_host, placement.num_devices, placement.num_hosts
    by_device, by_host = _kept_bytes(task, placement, before)
    forbidden = -2.0 * (1 + by_device.sum() + by_host.sum())  # less than any allowed choice is worth
    by_device = np.where(_alike(task, placement), by_device, forbidden * num_devices)
    members = [list(range(h * per_host, min((h + 1) * per_host, num_devices))) for h in range(num_hosts)]
    gained = np.full((num_hosts, num_hosts), forbidden)
    within: dict[tuple[int, int], list[int]] = {}
    for old, new in product(range(num_hosts), repeat=2):
        if len(members[old]) == len(members[new]):
            kept = by_device[np.ix_(members[old], members[new])]
            rows, columns = scipy.optimize.linear_sum_assignment(kept, maximize=True)
            within[old, new] = [members[new][column] for column in columns]
            gained[old, new] = max(forbidden, kept[rows, columns].sum() + by_host[old, new])
    _, host = scipy.optimize.linear_sum_assignment(gained, maximize=True)
    device = [name for old, new in enumerate(host.tolist()) for name in within[old, new]]
    return _Names(device, host.tolist())


def _kept_bytes(task: PlacementTask, placement: Placement, before: Blocks) -> tuple[Matrix, Matrix]:
    """Bytes kept if device (host) `i` of the placement is called `j`: `[D, D]` and `[H, H]`."""
    per_host = placement.devices_per_host
    by_device = np.zeros((placement.num_devices, placement.num_devices))
    by_host = np.zeros((placement.num_hosts, placement.num_hosts))
    after = blocks_of(task, placement)
    for sharding, (name, blocks) in zip(placement.tables, after.items(), strict=True):
        held: list[Block] = [block for block in before.get(name, ()) if block.device < placement.num_devices]
        if sharding.sharding_type in ON_ONE_DEVICE:
            for block in blocks:
                for other in held:
                    by_device[block.device, other.device] += _shared_bytes(block, other)
        elif sharding.sharding_type in ON_ONE_HOST:
            for block in blocks:
                for other in held:
                    if block.device % per_host == other.device % per_host:
                        by_host[block.device // per_host, other.device // per_host] += _shared_bytes(block, other)
    return by_device, by_host


def _shared_bytes(block: Block, other: Block) -> int:
    part = block.overlap(other)
    return 0 if part is None else other.part_bytes(*part)


def _alike(task: PlacementTask, placement: Placement) -> NDArray[np.bool_]:
    """`[D, D]` whether two devices have the same room, may hold the same tables, and hold equal blocks of spread tables."""
    of_device = torch.cat([allowed_devices(task).long(), task.capacity_bytes[None]]).T  # [D, T + 1]
    kinds = torch.unique(of_device, dim=0, return_inverse=True)[1].numpy()  # [D]
    alike: NDArray[np.bool_] = kinds[:, None] == kinds
    for held in _blocks_held(task, placement):
        rows = np.array(held, np.int64)
        alike &= np.abs(rows[:, None] - rows) <= _EQUAL_BLOCKS * rows.max()
    return alike


def _blocks_held(task: PlacementTask, placement: Placement) -> set[tuple[int, ...]]:
    """`[D]` rows that each device holds, or would if it were on the host, of every table whose rows are spread."""
    per_host, num_devices = placement.devices_per_host, placement.num_devices
    result = set()
    for rows, sharding in zip(task.tables.rows.tolist(), placement.tables, strict=True):
        spread = num_devices if sharding.sharding_type == "row_wise" else per_host
        if sharding.sharding_type == "row_wise" or sharding.sharding_type in ON_ONE_HOST:
            sizes = [end - start for start, end in row_blocks(rows, spread)]
            result.add(tuple(sizes[device % spread] for device in range(num_devices)))
    return result
