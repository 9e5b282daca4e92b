"""The figures that the page of a plan shows; nothing here draws."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch

from dreamshard.costs import PHASES
from dreamshard.explain import TableShares
from dreamshard.moving import Step
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, Placement, TableSharding
from dreamshard.tasks import PlacementTask

OTHERS, WAITING = -1, -2
"""Numbers of parts that are no table: a device's small tables together, and its wait for the other devices."""

SIZES = ("whole", *PHASES, "gib")
"""What a chart stacks: milliseconds of the whole step, or of one phase; GiB of device memory."""

_MOST_PARTS = 8000  # of all bars of a chart
_FEWEST_PARTS = 6  # of one bar
_FEW = 8  # devices that are listed one by one


@dataclass(frozen=True, kw_only=True)
class Side:
    """One placement of the page.

    Attributes:
        name: in the legend, e.g. `new plan`.
        shares: of the page's tables by their numbers.
        sharding_of: how each table is sharded, by name.
    """

    name: str
    shares: TableShares
    sharding_of: Mapping[str, TableSharding]

    @classmethod
    def of(cls, name: str, task: PlacementTask, placement: Placement, shares: TableShares) -> "Side":
        """A placement of a task's tables."""
        return cls(
            name=name,
            shares=shares,
            sharding_of=dict(zip(task.tables.names, placement.tables, strict=True)),
        )

    @property
    def device_ms(self) -> list[float]:
        """Milliseconds of each device; empty if no costs are known."""
        phases_ms = self.shares.device_phases_ms
        return [] if phases_ms is None else phases_ms.sum(dim=1).tolist()

    def where(self, table: str) -> str:
        """Devices or hosts of a table, e.g. `0, 3`; empty if the placement does not have it."""
        sharding = self.sharding_of.get(table)
        if sharding is None:
            return ""
        if not sharding.where:
            return "all"
        places = sorted(set(sharding.where))
        shown = ", ".join(map(str, places[:_FEW])) + (f" and {len(places) - _FEW} more" if len(places) > _FEW else "")
        return f"host {shown}" if sharding.sharding_type in ON_ONE_HOST else shown

    def way(self, table: str) -> str:
        """How a table is sharded, e.g. `column_wise x 3` or `table_wise, 10% cached`."""
        sharding = self.sharding_of[table]
        parts = f" x {len(sharding.columns)}" if len(sharding.columns) > 1 else ""
        cached = "" if sharding.cached_share is None else f", {sharding.cached_share:.0%} cached"
        return f"{sharding.sharding_type}{parts}{cached}"


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """What the page shows.

    Attributes:
        title: e.g. `tables.csv`.
        task: whose tables are placed.
        side: the plan.
        before: the plan in use, or another placer's; None without one.
        facts: label and text of each fact at the top, such as the hardware that the costs are of.
        warning: empty without one.
        notes: sentences at the end.
        steps: from `before` to `side`.
        stay_ms: how much longer a step would take if a table that moves stayed as it was, by table.
    """

    title: str
    task: PlacementTask
    side: Side
    before: Side | None = None
    facts: tuple[tuple[str, str], ...] = ()
    warning: str = ""
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    stay_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_costs(self) -> bool:
        """Whether any costs are known."""
        return self.side.shares.phases_ms is not None

    @property
    def sides(self) -> list[Side]:
        """The plan, and the one that it is compared with."""
        return [self.side] if self.before is None else [self.side, self.before]

    @property
    def num_devices(self) -> int:
        """The rows of the charts: devices of either side."""
        return max(self.task.num_devices, *(side.shares.num_devices for side in self.sides))

    def moved(self) -> tuple[set[tuple[int, int]], set[tuple[int, int | None]]]:
        """Tables by number with the devices that they move to, and with those that they leave."""
        number = {name: t for t, name in enumerate(self.task.tables.names)}
        moves = [step for step in self.steps if step.kind == "move"]
        return {(number[s.table], s.target) for s in moves}, {(number[s.table], s.source) for s in moves}


def tables_of(view: PlanView) -> pd.DataFrame:
    """A row per table, indexed by its number: largest cost first, or largest memory if no costs are known.

    `before` says where a table was if it has moved.
    """
    tables, shares, names = view.task.tables, view.side.shares, view.task.tables.names
    held = torch.zeros(len(tables), dtype=torch.float64).index_add_(0, shares.table, shares.memory_bytes.double())
    frame = pd.DataFrame(
        {
            "name": names,
            "rows": tables.rows.numpy(),
            "dim": tables.dim.numpy(),
            "pooling": tables.pooling_factor.numpy().round(4),
            "lookups": tables.lookups.numpy(),
            "way": [view.side.way(name) for name in names],
            "where": [view.side.where(name) for name in names],
            "gib": held.numpy() / 2**30,
        }
    )
    if shares.phases_ms is not None:
        ms = torch.zeros(len(tables), dtype=torch.float64)
        frame["ms"] = ms.index_add_(0, shares.table, shares.phases_ms.sum(dim=1).double()).numpy()
    if view.before is not None:
        frame["before"] = [_before(view.side, view.before, name) for name in names]
    return frame.sort_values("ms" if "ms" in frame else "gib", ascending=False, kind="stable")


def _before(side: Side, before: Side, name: str) -> str:
    """Where a table was, if it was elsewhere or sharded otherwise."""
    old, new = before.sharding_of.get(name), side.sharding_of[name]
    if old is None:
        return "new"
    if old == new:
        return ""
    types = {old.sharding_type, new.sharding_type}
    same_kind = len(types) == 1 or types <= set(ON_ONE_DEVICE)
    return before.where(name) if same_kind else f"{before.where(name)} ({before.way(name)})"


def moves_of(view: PlanView) -> pd.DataFrame:
    """A row per step from the plan in use: what moves, is re-split on its device, or is loaded."""
    tables, before = view.task.tables, view.before
    sizes = dict(zip(tables.names, zip(tables.rows.tolist(), tables.dim.tolist(), strict=True), strict=True))

    def part(step: Step) -> str:
        rows, dim = sizes[step.table]
        ranges = [f"columns {step.columns[0]} to {step.columns[1]}"] if step.columns != (0, dim) else []
        ranges += [f"rows {step.rows[0]:,} to {step.rows[1]:,}"] if step.rows != (0, rows) else []
        text = ", ".join(ranges) or "all"
        if step.kind != "cut" or before is None or before.way(step.table) == view.side.way(step.table):
            return text
        return f"{text}: {before.way(step.table)} -> {view.side.way(step.table)}"

    return pd.DataFrame(
        {
            "step": range(1, len(view.steps) + 1),
            "kind": [step.kind for step in view.steps],
            "table": [step.table for step in view.steps],
            "part": [part(step) for step in view.steps],
            "source": ["-" if step.source is None else str(step.source) for step in view.steps],
            "target": [str(step.target) for step in view.steps],
            "mib": [step.memory_bytes / 2**20 for step in view.steps],
            "stay": [view.stay_ms.get(step.table, float("nan")) for step in view.steps],
        }
    )


def parts_of(side: Side, moved: Collection[tuple[int, int | None]], most: int = _MOST_PARTS) -> pd.DataFrame:
    """The parts of a side's bars, stacked on each device: tables, largest first, then `WAITING`.

    Args:
        side: whose bars they are.
        moved: tables and devices to highlight.
        most: parts of all bars; a device's smallest tables beyond it become one part, `OTHERS`.

    Returns:
        `table`, `device`, `count` of tables, `moved`, the `SIZES`, and `left` and `right` ends of each size by its position.
    """
    shares = side.shares
    phases_ms = torch.zeros(len(shares.table), len(PHASES)) if shares.phases_ms is None else shares.phases_ms
    frame = pd.DataFrame({"table": shares.table.numpy(), "device": shares.device.numpy(), "count": 1})
    frame[list(PHASES)] = phases_ms.double().numpy()
    frame["gib"] = shares.memory_bytes.numpy() / 2**30
    frame["moved"] = [pair in moved for pair in zip(frame["table"], frame["device"], strict=True)]
    frame["whole"] = frame[list(PHASES)].sum(axis=1)
    size = "gib" if shares.phases_ms is None else "whole"
    frame = frame.sort_values(["device", size, "table"], ascending=[True, False, True])
    alone = frame.groupby("device").cumcount() < max(_FEWEST_PARTS, most // shares.num_devices)
    frame["table"] = frame["table"].where(alone | frame["moved"], OTHERS)
    frame = frame.groupby(["device", "table"], sort=False, as_index=False).sum()
    if shares.rest_ms is not None:
        rest = pd.DataFrame(shares.rest_ms.double().numpy(), columns=list(PHASES))
        rest = rest.assign(table=WAITING, device=rest.index, count=0, gib=0.0, moved=False, whole=rest.sum(axis=1))
        frame = pd.concat([frame, rest[rest["whole"] > 0]], ignore_index=True)
    frame = frame.sort_values("device", kind="stable", ignore_index=True)
    for k, name in enumerate(SIZES):
        stacked = frame.sort_values(["device", "gib"], ascending=[True, False]) if name == "gib" else frame
        frame[f"right{k}"] = stacked.groupby("device")[name].cumsum()
        frame[f"left{k}"] = frame[f"right{k}"] - frame[name]
    return frame.astype({"moved": bool})


def colours_of(side: Side, order: Sequence[int], palette: Sequence[str]) -> dict[int, str]:
    """A colour of each table, given in this order, so that tables of one device differ as far as there are colours."""
    devices_of: dict[int, list[int]] = {}
    for t, d in zip(side.shares.table.tolist(), side.shares.device.tolist(), strict=True):
        devices_of.setdefault(t, []).append(d)
    used, colours = np.zeros((side.shares.num_devices, len(palette))), {}
    for rank, t in enumerate(order):
        turn = (np.arange(len(palette)) - rank) % len(palette)  # of two that are used alike, the next one
        chosen = int(np.argmin(used[devices_of[t]].sum(axis=0) * len(palette) + turn))
        used[devices_of[t], chosen] += 1
        colours[t] = palette[chosen]
    return colours
