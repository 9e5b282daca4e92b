"""The figures that the page of a plan shows; nothing here draws."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd  # type: ignore[import-untyped]
import torch

from dreamshard.costs import PHASES
from dreamshard.explain import table_shares
from dreamshard.moving import Step
from dreamshard.placement import ON_ONE_HOST, Placement, TableSharding
from dreamshard.search.costs import Predictor
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from flows.placing.request import Placed

OTHERS, WAITING = -1, -2
"""Numbers of parts that are no table: a device's small tables together, and its wait for the other devices."""

SIZES = ("whole", *PHASES, "gib")
"""Sizes that a chart stacks: milliseconds of the whole step, or of one phase; GiB of device memory."""

_MOST_PARTS = 8000  # of all bars of a chart
_FEWEST_PARTS = 6  # of one bar
_FEW = 8  # devices that are listed one by one


@dataclass(frozen=True)
class Side:
    """One placement of the page.

    Attributes:
        name: in the legend, e.g. `new plan`.
        sharding_of: how each table is sharded, by name.
        pairs: a row per table and device that holds some of it, and one of `WAITING` per device: number of the `table`,
            `device`, and its part of each of `SIZES`; milliseconds are 0 if no costs are known.
    """

    name: str
    sharding_of: Mapping[str, TableSharding]
    pairs: pd.DataFrame

    @classmethod
    def of(
        cls,
        name: str,
        task: PlacementTask,
        placement: Placement,
        predictor: Predictor | None,
        number: Sequence[int] | None = None,
    ) -> "Side":
        """A placement of a task's tables; `number` says which tables of the page they are, if not all."""
        shares = table_shares(task, placement, predictor)
        table = [t if number is None else number[t] for t in shares.table.tolist()]
        devices = range(task.num_devices)
        pairs = pd.DataFrame({"table": [*table, *(WAITING for _ in devices)]})
        pairs["device"] = [*shares.device.tolist(), *devices]
        pairs["gib"] = [*(shares.memory_bytes / 2**30).tolist(), *(0.0 for _ in devices)]
        pairs[list(PHASES)] = torch.cat([shares.phases_ms, shares.rest_ms]).numpy()
        pairs["whole"] = pairs[list(PHASES)].sum(axis=1)
        return cls(name, dict(zip(task.tables.names, placement.tables, strict=True)), pairs)

    @property
    def sums(self) -> pd.DataFrame:
        """Each of `SIZES` by device."""
        return self.pairs.groupby("device")[list(SIZES)].sum()

    @property
    def size(self) -> str:
        """The size that orders tables and devices: cost, or memory if no costs are known."""
        return "whole" if self.pairs["whole"].any() else "gib"


def sides_of(placed: Placed) -> list[Side]:
    """The plan, then the plan in use: with today's tables if it can be kept, otherwise as it is."""
    task, in_use, predictor = placed.request.task, placed.request.in_use, placed.predictor
    if in_use is None:
        return [Side.of("plan", task, placed.placement, predictor)]
    new, kept = Side.of("new plan", task, placed.placement, predictor), placed.kept
    if kept is not None:
        return [new, Side.of("plan in use", task, kept.placement, predictor)]
    return [new, Side.of("plan in use", in_use.task, in_use.placement, predictor, [*in_use.sharding_of])]


def where(sharding: TableSharding) -> str:
    """Devices or hosts of a table, e.g. `0, 3`."""
    if not sharding.where:
        return "all"
    places = sorted(set(sharding.where))
    shown = ", ".join(map(str, places[:_FEW])) + (f" and {len(places) - _FEW} more" if len(places) > _FEW else "")
    return f"host {shown}" if sharding.sharding_type in ON_ONE_HOST else shown


def way(sharding: TableSharding) -> str:
    """How a table is sharded, e.g. `column_wise x 3` or `table_wise, 10% cached`."""
    parts = f" x {len(sharding.columns)}" if len(sharding.columns) > 1 else ""
    cached = "" if sharding.cached_share is None else f", {sharding.cached_share:.0%} cached"
    return f"{sharding.sharding_type}{parts}{cached}"


def tables_of(tables: Tables, sides: Sequence[Side]) -> pd.DataFrame:
    """A row per table, indexed by its number, largest first; `before` is its old place if that has changed."""
    new, sums = sides[0], sides[0].pairs.groupby("table")[["gib", "whole"]].sum()
    frame = pd.DataFrame(
        {
            "name": tables.names,
            "rows": tables.rows.numpy(),
            "dim": tables.dim.numpy(),
            "pooling": tables.pooling_factor.numpy().round(4),
            "lookups": tables.lookups.numpy(),
            "way": [way(new.sharding_of[name]) for name in tables.names],
            "where": [where(new.sharding_of[name]) for name in tables.names],
            "gib": sums["gib"],
            "whole": sums["whole"],
        },
        index=range(len(tables)),
    )
    if len(sides) > 1:
        pairs = ((sides[1].sharding_of.get(name), new.sharding_of[name]) for name in tables.names)
        frame["before"] = ["new" if old is None else "" if old == now else _before(old, now) for old, now in pairs]
    return frame.sort_values(new.size, ascending=False, kind="stable")


def _before(old: TableSharding, new: TableSharding) -> str:
    return where(old) if way(old) == way(new) else f"{where(old)} ({way(old)})"


def moves_of(steps: Sequence[Step]) -> pd.DataFrame:
    """A row per step from the plan in use: parts that move or are loaded."""
    return pd.DataFrame(
        {
            "step": range(1, len(steps) + 1),
            "table": [step.table for step in steps],
            "rows": [f"{step.rows[0]:,} to {step.rows[1]:,}" for step in steps],
            "columns": [f"{step.columns[0]} to {step.columns[1]}" for step in steps],
            "source": ["loaded" if step.source is None else str(step.source) for step in steps],
            "target": [str(step.target) for step in steps],
            "mib": [step.memory_bytes / 2**20 for step in steps],
        }
    )


def parts_of(side: Side, moved: Collection[tuple[int, int | None]], most: int = _MOST_PARTS) -> pd.DataFrame:
    """The parts of a side's bars, stacked on each device: tables, largest first, then `WAITING`.

    Args:
        side: whose bars they are.
        moved: tables and devices to highlight.
        most: parts of all bars; a device's smallest tables beyond it become one part, `OTHERS`.

    Returns:
        `table`, `device`, `moved`, the `SIZES`, and `left` and `right` ends of each size by its position.
    """
    frame = side.pairs.assign(waits=side.pairs["table"] == WAITING)
    frame["moved"] = [pair in moved for pair in zip(frame["table"], frame["device"], strict=True)]
    frame = frame[~frame["waits"] | (frame["whole"] > 0)]
    frame = frame.sort_values(["device", "waits", side.size, "table"], ascending=[True, True, False, True])
    alone = frame.groupby("device").cumcount() < max(_FEWEST_PARTS, most // side.pairs["device"].nunique())
    frame["table"] = frame["table"].where(alone | frame["moved"] | frame["waits"], OTHERS)
    frame = frame.groupby(["device", "table"], sort=False, as_index=False).sum()
    for k, name in enumerate(SIZES):
        stacked = frame.sort_values(["device", "gib"], ascending=[True, False]) if name == "gib" else frame
        frame[f"right{k}"] = stacked.groupby("device")[name].cumsum()
        frame[f"left{k}"] = frame[f"right{k}"] - frame[name]
    return frame.astype({"moved": bool})
