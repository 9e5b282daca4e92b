"""Placement tasks of one model whose tables are all known: the model itself, and variants of it that lack some tables.

Nothing is held out by table here. What is held out are placements, and variants that differ from those trained on.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from dreamshard.search.packing import packed_columns, split_by_columns
from dreamshard.tasks import PlacementTask, Shards

MODEL = "model"
"""Name of the task of the model itself, which is the first of its set."""

_LEFT_OUT_SHARE = 0.2  # of the tables, at most
_BUSY_SHARE = 0.5  # of a device's even share of the work: tables above it are worth splitting
_NARROWEST_SHARD = 16  # columns
_DRAWS_PER_VARIANT = 20  # before a new variant counts as impossible


def is_fixed_model(tasks: Sequence[PlacementTask]) -> bool:
    """Whether these are tasks of `fixed_tasks`."""
    return tasks[0].name == MODEL


def fixed_tasks(
    model: PlacementTask,
    num_variants: int,
    generator: torch.Generator,
    *,
    name: str,
    used: Collection[frozenset[str]] = (),
) -> list[PlacementTask]:
    """The model, split by columns if a device cannot hold its tables, and at most `num_variants` distinct variants.

    A variant lacks up to a fifth of the tables.

    Args:
        model: all tables, whole.
        name: variants are called `{name}-000 (-2)`, by the number of tables that they lack.
        used: tables of variants that must not be drawn again.

    Raises:
        NoPlacementError: the model fits its devices under no split.
    """
    size, tasks = len(model.tables), [replace(split_to_fit(model), name=MODEL)]
    seen, most = {frozenset(model.tables.names), *used}, max(1, round(_LEFT_OUT_SHARE * size))
    for _ in range(_DRAWS_PER_VARIANT * num_variants if size > 2 else 0):
        if len(tasks) > num_variants:
            break
        count = int(torch.randint(1, most + 1, (), generator=generator))
        tables = model.tables.select(torch.randperm(size, generator=generator)[count:].sort().values)
        if (names := frozenset(tables.names)) not in seen:
            seen.add(names)
            variant = replace(model, tables=tables, name=f"{name}-{len(tasks) - 1:03} (-{count})")
            tasks.append(split_to_fit(variant))
    return tasks


def split_tasks(model: PlacementTask, count: int, generator: torch.Generator) -> list[PlacementTask]:
    """The model with its busiest tables split by columns at random, to learn what such shards cost; at most `count`.

    A placer splits tables whose work comes near a device's even share, so whole tables alone would leave its own placements
    unlike anything measured. There are none if no table is that busy.
    """
    work = model.tables.pooling_factor.double() * model.tables.dim
    shares = model.num_devices * work / work.sum().clamp(min=1e-9)  # [T] of a device's even share
    most = torch.minimum(model.tables.dim // _NARROWEST_SHARD, (2 * shares).ceil().long() + 1)
    most = torch.where(shares > _BUSY_SHARE, most, 1).clamp(min=1)
    tasks: list[PlacementTask] = []
    for number in range(count):
        parts = 1 + (torch.rand(len(most), generator=generator) * most).long()
        split = replace(model, name=f"split-{number:03}")
        drawn = split_by_columns(split, parts)
        if int(parts.max()) > 1 and int(drawn.table_bytes.sum()) <= int(drawn.capacity_bytes.sum()):
            tasks.append(drawn)
    return tasks


def split_to_fit(task: PlacementTask) -> PlacementTask:
    """The task with the coarsest column splits that can be packed; raises NoPlacementError if none is found."""
    return Shards.of(task, packed_columns(task)).as_task()
