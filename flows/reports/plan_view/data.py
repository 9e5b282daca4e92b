"""What the page of a plan shows, as figures; nothing here draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from dreamshard.explain import TableShares
from dreamshard.moving import Step
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, Placement, TableSharding
from dreamshard.tasks import PlacementTask

_FEW = 8  # devices that are listed one by one


@dataclass(frozen=True, kw_only=True)
class Side:
    """One placement of the page.

    Attributes:
        name: in the legend, e.g. `new plan`.
        shares: of the page's tables by their numbers.
        sharding_of: how each table is sharded, by name.
        devices_per_host: of `sharding_of`.
    """

    name: str
    shares: TableShares
    sharding_of: Mapping[str, TableSharding]
    devices_per_host: int

    @classmethod
    def of(cls, name: str, task: PlacementTask, placement: Placement, shares: TableShares) -> "Side":
        """A placement of a task's tables."""
        return cls(
            name=name,
            shares=shares,
            sharding_of=dict(zip(task.tables.names, placement.tables, strict=True)),
            devices_per_host=placement.devices_per_host,
        )

    @property
    def overall_ms(self) -> float | None:
        """Of the slowest device; None where no costs are known."""
        phases_ms = self.shares.device_phases_ms
        return None if phases_ms is None else float(phases_ms.sum(dim=1).max())

    @property
    def slowest(self) -> int | None:
        """The device that all others wait for; None where no costs are known."""
        phases_ms = self.shares.device_phases_ms
        return None if phases_ms is None else int(phases_ms.sum(dim=1).argmax())

    def where(self, table: str) -> str:
        """Devices or hosts of a table, e.g. `0, 3`; empty where the placement does not have it."""
        sharding = self.sharding_of.get(table)
        if sharding is None:
            return ""
        if not sharding.where:
            return "all"
        places = sorted(dict.fromkeys(sharding.where))
        shown = ", ".join(map(str, places[:_FEW])) + (f" and {len(places) - _FEW} more" if len(places) > _FEW else "")
        return f"host {shown}" if sharding.sharding_type in ON_ONE_HOST else shown

    def way(self, table: str) -> str:
        """How a table is sharded, e.g. `column_wise x 3` or `table_wise, 10% cached`."""
        sharding = self.sharding_of[table]
        parts = f" x {len(sharding.columns)}" if len(sharding.columns) > 1 else ""
        cached = "" if sharding.cached_share is None else f", {sharding.cached_share:.0%} cached"
        return f"{sharding.sharding_type}{parts}{cached}"


@dataclass(frozen=True, kw_only=True)
class MoveLine:
    """A step from the plan in use to the new one.

    Attributes:
        kind: as in `dreamshard.moving.Step`.
        part: rows or columns; empty for all of the table.
        source: device, `host memory`, or `-` for what is loaded.
        target: likewise.
        stay_ms: how much longer a step would take if the table, all of it, stayed as it was; None where that is not known.
    """

    kind: str
    table: str
    part: str
    source: str
    target: str
    memory_bytes: int
    stay_ms: float | None


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """What the page shows.

    Attributes:
        title: e.g. `tables.csv`.
        task: whose tables are placed.
        side: the plan.
        before: the plan in use, or another placer's; None without one.
        costs: what the figures are.
        facts: label and text of what is said at the top, such as the hardware that the costs are of.
        warning: empty without one.
        notes: sentences at the end.
        moves: from `before`.
        moved_to: tables and devices that get a part of them by a move.
        moved_from: tables and devices that a part of them leaves by a move.
    """

    title: str
    task: PlacementTask
    side: Side
    before: Side | None = None
    costs: Literal["predicted", "measured"] = "predicted"
    facts: tuple[tuple[str, str], ...] = ()
    warning: str = ""
    notes: tuple[str, ...] = ()
    moves: tuple[MoveLine, ...] = ()
    moved_to: frozenset[tuple[int, int]] = frozenset()
    moved_from: frozenset[tuple[int, int]] = frozenset()

    @property
    def has_costs(self) -> bool:
        """Whether any costs are known."""
        return self.side.shares.phases_ms is not None

    @property
    def num_devices(self) -> int:
        """The rows of the charts: devices of either side."""
        return max(self.task.num_devices, 0 if self.before is None else self.before.shares.num_devices)


@dataclass(frozen=True)
class TableColumns:
    """Figures of all tables, by column; largest cost first (largest memory where no costs are known).

    Attributes:
        order: numbers of the task's tables.
        columns: by name; `before` is where a table was if it has moved.
    """

    order: tuple[int, ...]
    columns: Mapping[str, Sequence[object]] = field(default_factory=dict)


def table_columns(view: PlanView) -> TableColumns:
    """The list of all tables."""
    tables, shares = view.task.tables, view.side.shares
    count = len(tables)
    held = torch.zeros(count, dtype=torch.int64).index_add_(0, shares.table, shares.memory_bytes)
    ms = None
    if shares.phases_ms is not None:
        ms = torch.zeros(count, dtype=torch.float64).index_add_(0, shares.table, shares.phases_ms.sum(dim=1).double())
    order = torch.argsort(held.double() if ms is None else ms, descending=True, stable=True).tolist()
    names = [tables.names[t] for t in order]
    columns: dict[str, Sequence[object]] = {
        "name": names,
        "rows": tables.rows[order].tolist(),
        "dim": tables.dim[order].tolist(),
        "pooling": [round(value, 4) for value in tables.pooling_factor[order].tolist()],
        "lookups": tables.lookups[order].tolist(),
        "way": [view.side.way(name) for name in names],
        "where": [view.side.where(name) for name in names],
        "gib": [value / 2**30 for value in held[order].tolist()],
    }
    if ms is not None:
        columns["ms"] = ms[order].tolist()
    if view.before is not None:
        columns["before"] = [_before(view, view.before, name) for name in names]
    return TableColumns(tuple(order), columns)


def _before(view: PlanView, before: Side, name: str) -> str:
    """Where a table was, if it was elsewhere or sharded otherwise."""
    old, new = before.sharding_of.get(name), view.side.sharding_of[name]
    if old is None:
        return "new"
    if old == new:
        return ""
    types = {old.sharding_type, new.sharding_type}
    if len(types) == 1 or types <= set(ON_ONE_DEVICE):
        return before.where(name)
    return f"{before.where(name)} ({before.way(name)})"


def move_lines(
    task: PlacementTask, steps: Sequence[Step], stay_ms: Mapping[str, float]
) -> tuple[tuple[MoveLine, ...], frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    """The steps; and tables with the devices that they come to and leave by moves.

    Args:
        task: of the tables.
        steps: from the plan in use.
        stay_ms: of each table that moves, as in `MoveLine`.
    """
    number = {name: t for t, name in enumerate(task.tables.names)}
    lines = tuple(
        MoveLine(
            kind=step.kind,
            table=step.table,
            part=_part(task, number[step.table], step),
            source=_place(step.source),
            target=_place(step.target),
            memory_bytes=step.memory_bytes,
            stay_ms=stay_ms.get(step.table),
        )
        for step in steps
    )
    moves = [step for step in steps if step.kind == "move"]
    return (
        lines,
        frozenset((number[step.table], step.target) for step in moves),
        frozenset((number[step.table], step.source) for step in moves if step.source is not None),
    )


def _place(place: int | None) -> str:
    return "-" if place is None else str(place)


def _part(task: PlacementTask, table: int, step: Step) -> str:
    parts = []
    if step.columns != (0, int(task.tables.dim[table])):
        parts.append(f"columns {step.columns[0]} to {step.columns[1]}")
    if step.rows != (0, int(task.tables.rows[table])):
        parts.append(f"rows {step.rows[0]:,} to {step.rows[1]:,}")
    return ", ".join(parts)
