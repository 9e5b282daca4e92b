"""Which tables are worth splitting by columns, and into how many shards.

A column shard repeats its table's lookups for fewer columns each, so splitting costs something; it pays where a single
table is a large part of what one device should carry, or larger than a device. Proposals only: `search.py` compares
what they lead to with whole tables, by predicted cost.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.tasks import PlacementTask

_SHARES = (0.5, 0.25)  # of a device's even share, above which a table is proposed to be split
_FINEST = 4  # columns of the narrowest shard
_USUAL = 16  # columns below which splitting for speed is not proposed: narrower rows waste memory transactions


def splits(task: PlacementTask, single_ms: Float[Tensor, " T"]) -> list[Int[Tensor, " T"]]:
    """Numbers of shards per table to try, the least split first.

    The first only splits tables that no device can hold; each further one also splits the tables whose predicted cost
    or dims exceed a share of what an evenly loaded device would have.

    Args:
        task: what is to be placed.
        single_ms: `[T]` predicted cost of each table alone.
    """
    needed = needed_parts(task, task.memory_bytes)
    dims = task.tables.dim
    load = torch.maximum(single_ms / single_ms.sum().clamp(min=1e-9), dims / dims.sum()) * task.num_devices  # [T]
    proposals = [needed]
    most = torch.maximum(dims // _USUAL, needed).clamp(min=1)
    for share in _SHARES:
        parts = torch.minimum(torch.maximum((load / share).ceil().long(), needed), most)
        if not torch.equal(parts, proposals[-1]):
            proposals.append(parts)
    return proposals


def needed_parts(task: PlacementTask, largest_bytes: int) -> Int[Tensor, " T"]:
    """The fewest shards of each table of which none takes more than `largest_bytes`, as far as its columns allow."""
    units = task.tables.dim // _FINEST  # [T]
    unit_bytes = task.table_bytes // units  # [T] of four columns
    columns = (largest_bytes // unit_bytes.clamp(min=1)).clamp(min=1)  # [T] units that fit
    return torch.minimum((units + columns - 1) // columns, units)


def tight_splits(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Finer and finer splits by size alone, for tasks whose memory is too tight for larger pieces."""
    return [needed_parts(task, max(task.memory_bytes // 2**k, 1)) for k in range(1, 7)]
