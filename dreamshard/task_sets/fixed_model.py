"""Placement tasks of one model whose tables are all known: the model itself, and variants of it as it drifts over weeks.

Nothing is held out by table here. What is held out are placements, and variants that differ from those trained on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import Placement, TableSharding, even_columns
from dreamshard.placer import NoPlacementError
from dreamshard.search.packing import fits_together, packed_by_size, packed_columns, tight_splits
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.drift import Drift, additions_to, drifts_of

MODEL = "model"
"""Name of the task of the model itself, which is the first of its set."""

_REMOVED_SHARE = 0.1  # of the tables, at most; so for added ones
_BUSY_SHARE = 0.5  # of a device's even share of the work: tables above it are worth splitting
_NARROWEST_SHARD = 16  # columns
_DRAWS_PER_VARIANT = 20  # before a variant that is legal and new counts as impossible


@dataclass(frozen=True, kw_only=True)
class DriftedTables:
    """Tables that variants of one side are made of besides the model's own."""

    changed: tuple[Drift, ...]
    added: tuple[Drift, ...]

    @property
    def all(self) -> tuple[Drift, ...]:
        """Changed and added ones."""
        return self.changed + self.added


def is_fixed_model(tasks: Sequence[PlacementTask]) -> bool:
    """Whether these are tasks of `fixed_tasks`."""
    return tasks[0].name == MODEL


def draw_drift(model: Tables, *, seed: int, most_lookups: int) -> DriftedTables:
    """The drifted tables of one side; training and held-out tasks need different seeds."""
    count = 2 * _most_exchanged(model)
    changed = drifts_of(model, seed=seed, most_lookups=most_lookups)
    return DriftedTables(changed=changed, added=additions_to(model, count, seed=seed, most_lookups=most_lookups))


def fixed_tasks(
    model: PlacementTask,
    pool: Tables,
    drift: DriftedTables,
    num_variants: int,
    generator: torch.Generator,
    *,
    name: str,
    used: Collection[frozenset[str]] = (),
) -> list[PlacementTask]:
    """The model, split by columns where a device cannot hold its tables, and distinct legal variants of it.

    A variant's name says how many tables were added (+), removed (-) and changed (~).

    Args:
        model: all tables, whole.
        pool: holds the drifted tables.
        name: variants are called `{name}-000 (+1 -0 ~9)` and so on.
        used: tables of variants that must not be drawn again.

    Returns:
        `[1 + V]`, `V` at most `num_variants`: fewer where the devices have no room for more, or there are no more.

    Raises:
        NoPlacementError: the model fits its devices under no split.
    """
    tasks = [replace(split_to_fit(model), name=MODEL)]
    seen = {frozenset(model.tables.names), *used}
    for _ in range(_DRAWS_PER_VARIANT * num_variants):
        if len(tasks) > num_variants:
            break
        kept, added, changes = _draw_variant(model.tables, drift, generator)
        tables = frozenset(kept + added)
        if tables in seen:
            continue
        seen.add(tables)
        label = f"{name}-{len(tasks) - 1:03} (+{len(added)} -{len(model.tables) - len(kept)} ~{changes})"
        variant = pool.named(kept + added)
        try:
            tasks.append(split_to_fit(replace(model, tables=variant, name=label)))
        except (ValueError, NoPlacementError):  # grown beyond the devices, so never legal
            continue
    return tasks


def split_tasks(model: PlacementTask, count: int, generator: torch.Generator) -> list[PlacementTask]:
    """The model with its busiest tables split by columns at random, to learn what such shards cost; `[C]`, `C` up to `count`.

    A placer splits tables whose work comes near a device's even share, so whole tables alone would leave its own placements
    unlike anything measured. There are none where no table is that busy.
    """
    work = model.tables.pooling_factor.double() * model.tables.dim
    shares = model.num_devices * work / work.sum().clamp(min=1e-9)  # [T] of a device's even share
    most = torch.minimum(model.tables.dim // _NARROWEST_SHARD, (2 * shares).ceil().long() + 1)
    most = torch.where(shares > _BUSY_SHARE, most, torch.ones_like(most)).clamp(min=1)
    if int(most.max()) == 1:
        return []
    tasks: list[PlacementTask] = []
    for number in range(count):
        parts = 1 + (torch.rand(len(most), generator=generator) * most).long()
        split = replace(model, name=f"split-{number:03}")
        if int(parts.max()) > 1 and fits_together(split, parts):
            tasks.append(split_by_columns(split, parts))
    return tasks


def split_to_fit(task: PlacementTask) -> PlacementTask:
    """The task with the coarsest column splits by which its tables can be packed; itself where whole tables can.

    Raises:
        NoPlacementError: no split can be packed, as far as is known.
    """
    for parts in tight_splits(task):
        split = split_by_columns(task, parts)
        if packed_by_size(split) is not None:
            return split
    return Shards.of(task, packed_columns(task)).as_task(task)


def split_by_columns(task: PlacementTask, parts: Int[Tensor, " T"]) -> PlacementTask:
    """The task with each table split into so many tables of about equally many columns, called `name[start:end]`.

    Raises:
        ValueError: a table has too few columns for that many parts.
    """
    dims = task.tables.dim.tolist()
    tables = tuple(
        TableSharding("column_wise", even_columns(dim, count), (0,) * count)
        for dim, count in zip(dims, parts.tolist(), strict=True)
    )
    return Shards.of(task, Placement(tables, task.num_devices, task.num_devices)).as_task(task)


def _draw_variant(model: Tables, drift: DriftedTables, generator: torch.Generator) -> tuple[list[str], list[str], int]:
    """Names of tables kept, some of them changed, names of tables added, and the number of changed ones."""
    most = _most_exchanged(model)
    num_removed, num_added = (int(torch.randint(most + 1, (), generator=generator)) for _ in range(2))
    removed = set(torch.randperm(len(model), generator=generator)[:num_removed].tolist())
    share = 0.2 + 0.6 * float(torch.rand((), generator=generator))
    draws = torch.rand(len(drift.changed), generator=generator).tolist()
    changed = {each.table: each.name for each, draw in zip(drift.changed, draws, strict=True) if draw < share}
    remaining = [table for t, table in enumerate(model.names) if t not in removed]
    order = torch.randperm(len(drift.added), generator=generator).tolist()
    added = [drift.added[position].name for position in sorted(order[:num_added])]
    return [changed.get(table, table) for table in remaining], added, sum(table in changed for table in remaining)


def _most_exchanged(model: Tables) -> int:
    """Tables that a variant may lack, and may have in addition."""
    return max(1, round(_REMOVED_SHARE * len(model))) if len(model) > 2 else 0
