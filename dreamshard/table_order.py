"""One order of a task's tables, whatever order they came in, so that the order of a list changes no placement.

Searches draw tables by number, and sums of floating-point numbers depend on their order.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import Placement
from dreamshard.sharding import ShardedPlacement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R", bound=Placement | ShardedPlacement)


def in_one_order(
    place: Callable[Concatenate[S, PlacementTask, P], R],
) -> Callable[Concatenate[S, PlacementTask, P], R]:
    """Let a placer's method see the tables of a task in their one order; what it returns is in the order of the task."""

    @wraps(place)
    def placed(self: S, task: PlacementTask, *args: P.args, **kwargs: P.kwargs) -> R:
        order = one_order(task.tables)
        found = place(self, replace(task, tables=task.tables.select(order)), *args, **kwargs)
        return _reordered(found, order)

    return cast(Callable[Concatenate[S, PlacementTask, P], R], placed)


def one_order(tables: Tables) -> Int[Tensor, " T"]:
    """Numbers of the tables by rows, then by all other figures; by name only where these are the same."""
    names = np.unique(np.array(tables.names), return_inverse=True)[1]
    figures = (
        tables.lookups,
        tables.unique_rows,
        tables.pooling_factor,
        tables.dim,
        tables.rows,
    )  # the last counts first
    return torch.from_numpy(np.lexsort((names, *(figure.numpy() for figure in figures))))


def _reordered(found: R, order: Int[Tensor, " T"]) -> R:
    """A placement of the tables `order` of a task, as one of the task."""
    reordered = _tables_of(found, order) if isinstance(found, ShardedPlacement) else _devices_of(found, order)
    return cast(R, reordered)


def _tables_of(found: ShardedPlacement, order: Int[Tensor, " T"]) -> ShardedPlacement:
    return replace(found, tables=tuple(found.tables[i] for i in order.argsort().tolist()))


def _devices_of(found: Placement, order: Int[Tensor, " T"]) -> Placement:
    if found.shards is None:
        return replace(found, device=found.device[order.argsort()])
    own = [replace(shard, table=int(order[shard.table])) for shard in found.shards]
    by_table = sorted(range(len(own)), key=lambda s: (own[s].table, own[s].start))
    return replace(found, device=found.device[by_table], shards=tuple(own[s] for s in by_table))
