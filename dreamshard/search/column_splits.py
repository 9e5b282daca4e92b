"""Which tables are worth splitting by columns, and into how many shards.

A column shard repeats its table's lookups for fewer columns each, so splitting costs something; it pays where a single
table is a large part of what one device should carry, or larger than a device. Proposals only: `search.py` compares
what they lead to with whole tables, by predicted cost.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.placement import ColumnShard, Placement
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT
from dreamshard.tasks import PlacementTask

_NEAR_EVEN_SHARE = 0.9  # of what an evenly loaded device has; a table above it makes splitting worth a look
_SHARES = (0.5, 0.25)  # of the same, above which a table is then proposed to be split
FINEST = 4  # columns of the narrowest shard
_USUAL = 16  # columns below which splitting for speed is not proposed: narrower rows waste memory transactions


def splits(task: PlacementTask, single_ms: Float[Tensor, " T"]) -> list[Int[Tensor, " T"]]:
    """Numbers of shards per table to try, the least split first; all fit the devices' memory taken together.

    The first only splits tables that no device can hold. Further ones are proposed where one table comes near an even
    share of all cost or dims, since whole tables cannot be balanced then; each also splits the tables that exceed a
    smaller share.

    Args:
        task: what is to be placed.
        single_ms: `[T]` predicted cost of each table alone.
    """
    needed = needed_parts(task, task.memory_bytes)
    dims = task.tables.dim
    load = torch.maximum(single_ms / single_ms.sum().clamp(min=1e-9), dims / dims.sum()) * task.num_devices  # [T]
    proposals = [needed]
    if float(load.max()) < _NEAR_EVEN_SHARE:
        return proposals
    most = torch.maximum(dims // _USUAL, needed).clamp(min=1)
    for share in _SHARES:
        parts = torch.minimum(torch.maximum((load / share).ceil().long(), needed), most)
        if not torch.equal(parts, proposals[-1]) and fits_together(task, parts):
            proposals.append(parts)
    return proposals


def needed_parts(task: PlacementTask, largest_bytes: int) -> Int[Tensor, " T"]:
    """The fewest shards of each table of which none takes more than `largest_bytes`, as far as its columns allow.

    A shard takes its columns' weights and, where the optimizer keeps a state per row, all of that state.
    """
    units = task.tables.dim // FINEST  # [T]
    unit_bytes = task.tables.rows * FINEST * BYTES_PER_WEIGHT[task.precision]  # [T] of four columns
    room = largest_bytes - task.tables.rows * BYTES_PER_ROW_STATE[task.optimizer]  # [T]
    columns = torch.div(room, unit_bytes, rounding_mode="floor").clamp(min=1)  # [T] units that fit
    return torch.minimum((units + columns - 1) // columns, units)


def fits_together(task: PlacementTask, parts: Int[Tensor, " T"]) -> bool:
    """Whether the shards take no more than all devices together: each repeats its table's state per row."""
    repeated = (parts - 1) * task.tables.rows * BYTES_PER_ROW_STATE[task.optimizer]
    return int((task.table_bytes + repeated).sum()) <= task.num_devices * task.memory_bytes


def tight_splits(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Finer and finer splits by size alone, for tasks whose memory is too tight for larger pieces."""
    finer = [needed_parts(task, max(task.memory_bytes // 2**k, 1)) for k in range(7)]
    return [parts for parts in finer if fits_together(task, parts)]


def merged(placement: Placement) -> Placement:
    """The same with neighbouring shards of a table on one device joined, which looks its rows up once instead of twice."""
    if placement.shards is None:
        return placement
    joined: list[tuple[ColumnShard, int]] = []
    pairs = zip(placement.shards, placement.device.tolist(), strict=True)
    for shard, device in sorted(pairs, key=lambda pair: (pair[0].table, pair[0].start)):
        if (
            joined
            and joined[-1][1] == device
            and (joined[-1][0].table, joined[-1][0].end) == (shard.table, shard.start)
        ):
            joined[-1] = (replace(joined[-1][0], end=shard.end), device)
        else:
            joined.append((shard, device))
    return Placement(
        torch.tensor([device for _, device in joined]), placement.num_devices, tuple(shard for shard, _ in joined)
    )
