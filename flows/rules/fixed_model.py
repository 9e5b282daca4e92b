"""Placement tasks of one model whose tables are all known: the model itself, and variants of it as it drifts over weeks.

Nothing is held out by table here. What is held out are placements, and variants that differ from those trained on.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from dreamshard.cost_model.compiled import Floats
from dreamshard.placer import NoPlacementError
from dreamshard.search.packing import packed_columns, split_by_columns
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import Lookups, WorkloadTable, index_dtype, name_seed

MODEL = "model"
"""Name of the task of the model itself, which is the first of its set."""

_REMOVED_SHARE = 0.1  # of the tables, at most; so for added ones
_BUSY_SHARE = 0.5  # of a device's even share of the work: tables above it are worth splitting
_NARROWEST_SHARD = 16  # columns
_DRAWS_PER_VARIANT = 20  # before a variant that is legal and new counts as impossible


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a table is from the one it derives from.

    Attributes:
        table: its name.
        rows: hash size relative to its.
        pooling: lookups per sample relative to its.
    """

    table: str
    rows: float
    pooling: float

    @property
    def name(self) -> str:
        """The drifted table's name, which says all that its content depends on besides the table."""
        return f"{self.table} (rows x{self.rows:.2f}, lookups x{self.pooling:.2f})"

    @property
    def is_added(self) -> bool:
        """Whether the table is added to a variant: tables of the model only grow, and added ones have fewer rows."""
        return self.rows < 1


def draw_drift(model: Tables, *, seed: int, most_lookups: int) -> tuple[Drift, ...]:
    """The drifted tables of one side, changed ones first; training and held-out tasks need different seeds.

    A table changes as over weeks: hash sizes grow by up to 30 %, since ids are added. Pooling factors move both ways with a
    standard deviation of 15 %, so that many pass the 10 % at which a retraining starts. An added table resembles one of the
    model, with 30 to 90 % of its rows and up to twice its lookups. A table of one lookup per sample keeps that one.

    Args:
        most_lookups: of all changed tables together, and of all added ones; further tables are left out.
    """
    generator, size = np.random.default_rng(seed), len(model)
    factors, lookups = model.pooling_factor.tolist(), model.lookups.tolist()

    def drawn(rows: Floats, pooling: Floats, most: int) -> list[Drift]:
        left, found = most_lookups, dict[int, Drift]()
        for t in generator.permutation(size).tolist():
            factor = float(pooling[t]) if factors[t] > 1 else 1.0
            needed = round(lookups[t] * factor)
            if len(found) < most and needed <= left:
                left -= needed
                found[t] = Drift(table=model.names[t], rows=round(float(rows[t]), 2), pooling=round(factor, 2))
        return [found[t] for t in sorted(found)]

    steps = generator.standard_normal(size).clip(-2, 2)
    changed = drawn(generator.uniform(1.0, 1.3, size), np.exp(0.15 * steps), size)
    likeness = np.exp(generator.uniform(-0.7, 0.7, size))
    return *changed, *drawn(generator.uniform(0.3, 0.9, size), likeness, 2 * _most_exchanged(model))


def drifted(table: WorkloadTable, drift: Drift) -> WorkloadTable:
    """The table with other lookups.

    More rows: each row's lookups are spread over the rows that replace it. Fewer rows: neighbours share a row, as ids do in
    a smaller hash table. Fewer lookups: evenly spaced ones are left out. More lookups: other samples' are added.
    """
    rows, indices = max(1, round(table.rows * drift.rows)), table.lookups.indices.numpy()
    offsets = np.floor(table.lookups.offsets.numpy() * drift.pooling + 1e-9).astype(np.int64)
    if len(indices):
        source = np.minimum((np.arange(offsets[-1]) / drift.pooling).astype(np.int64), len(indices) - 1)
        repeated = np.diff(source, prepend=-1) == 0
        source[repeated] = (source[repeated] + len(indices) // 2) % len(indices)
        indices = indices[source]
    first = np.floor(indices.astype(np.float64) * rows / table.rows).astype(np.int64)  # of the rows that replace it
    after = np.floor((indices.astype(np.float64) + 1) * rows / table.rows).astype(np.int64)
    generator = np.random.default_rng(name_seed(drift.name))
    spread = (generator.random(len(indices)) * np.maximum(after - first, 1)).astype(np.int64)
    moved = torch.from_numpy(np.minimum(first + spread, rows - 1)).to(index_dtype(rows))
    return WorkloadTable(drift.name, rows, table.dim, Lookups(moved, torch.from_numpy(offsets)), table.poolings)


def is_fixed_model(tasks: Sequence[PlacementTask]) -> bool:
    """Whether these are tasks of `fixed_tasks`."""
    return tasks[0].name == MODEL


def fixed_tasks(
    model: PlacementTask,
    pool: Tables,
    drift: Sequence[Drift],
    num_variants: int,
    generator: torch.Generator,
    *,
    name: str,
    used: Collection[frozenset[str]] = (),
) -> list[PlacementTask]:
    """The model, split by columns if a device cannot hold its tables, and at most `num_variants` distinct legal variants.

    Args:
        model: all tables, whole.
        pool: holds the drifted tables.
        name: variants are called `{name}-000 (+1 -0 ~9)`, by their numbers of tables added, removed and changed.
        used: tables of variants that must not be drawn again.

    Raises:
        NoPlacementError: the model fits its devices under no split.
    """
    tasks = [replace(split_to_fit(model), name=MODEL)]
    seen = {frozenset(model.tables.names), *used}
    for _ in range(_DRAWS_PER_VARIANT * num_variants):
        if len(tasks) > num_variants:
            break
        names, label = _draw_variant(model.tables, drift, generator)
        if frozenset(names) in seen:
            continue
        seen.add(frozenset(names))
        variant = replace(model, tables=pool.named(names), name=f"{name}-{len(tasks) - 1:03} {label}")
        with suppress(NoPlacementError):  # grown beyond the devices, so never legal
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


def _draw_variant(model: Tables, drift: Sequence[Drift], generator: torch.Generator) -> tuple[list[str], str]:
    """Names of a variant's tables, and how many are added, removed and changed: `(+1 -0 ~9)`."""
    most = _most_exchanged(model)
    num_removed, num_added = torch.randint(most + 1, (2,), generator=generator).tolist()
    removed = set(torch.randperm(len(model), generator=generator)[:num_removed].tolist())
    share = 0.2 + 0.6 * float(torch.rand((), generator=generator))
    own, further = ([each for each in drift if each.is_added == is_added] for is_added in (False, True))
    draws = torch.rand(len(own), generator=generator).tolist()
    changed = {each.table: each.name for each, draw in zip(own, draws, strict=True) if draw < share}
    kept = [table for t, table in enumerate(model.names) if t not in removed]
    order = torch.randperm(len(further), generator=generator)[:num_added].sort().values
    added = [further[position].name for position in order.tolist()]
    label = f"(+{len(added)} -{len(removed)} ~{sum(table in changed for table in kept)})"
    return [changed.get(table, table) for table in kept] + added, label


def _most_exchanged(model: Tables) -> int:
    """Tables that a variant may lack, and may have in addition."""
    return max(1, round(_REMOVED_SHARE * len(model))) if len(model) > 2 else 0
