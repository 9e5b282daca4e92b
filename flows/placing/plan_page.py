"""The page of a plan as one file: its figures, and their charts and lists; and its devices as rows for a terminal."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from dreamshard.costs import PHASES
from dreamshard.explanation import table_shares
from dreamshard.files import counted, gib, shown
from dreamshard.search import SearchingPlacer
from dreamshard.tables import ON_ONE_HOST, Placement, Tables, TableSharding
from dreamshard.tasks import PlacementTask
from flows.placing.request import Placed, unmeasured_sentence

OTHERS, WAITING = -1, -2
"""Numbers of parts that are no table: a device's small tables together, and its wait for the other devices."""

SIZES = ("whole", *PHASES, "gib")
"""Sizes that bars stack: milliseconds of the whole step, or of one phase; GiB of device memory."""

_MOST_PARTS = 8000  # of all bars
_FEWEST_PARTS = 6  # of one bar
_SCREEN = 16  # devices that a screen shows
_TOP, _BAR = 3, 24  # of a terminal's row: tables named, characters of the longest bar

_TEMPLATES = Environment(
    loader=PackageLoader(__package__, ""),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,  # a name that the code no longer has is an error, not an empty page
)
_PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
"""Of tables: Paul Tol's light scheme, on which dark text is readable and which colour-blind people tell apart."""
_NO_TABLE = {
    OTHERS: {"name": "its smaller tables", "colour": "#c9cacf"},
    WAITING: {"name": "waits for other devices", "colour": "#9a9ca5"},
}


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
        predictor: SearchingPlacer | None,
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
    """The plan, then the current plan: with today's tables if it can be kept, otherwise as it is."""
    task, current, predictor = placed.request.task, placed.request.current, placed.predictor
    if current is None:
        return [Side.of("plan", task, placed.placement, predictor)]
    new, kept = Side.of("new plan", task, placed.placement, predictor), placed.kept
    if kept is not None:
        return [new, Side.of("current plan", task, kept.placement, predictor)]
    return [new, Side.of("current plan", current.task, current.placement, predictor, [*current.sharding_of])]


def where(sharding: TableSharding) -> str:
    """Devices or hosts of a table, e.g. `0, 3`."""
    if not sharding.where:
        return "all"
    places = shown(sorted(set(sharding.where)))
    return f"host {places}" if sharding.sharding_type in ON_ONE_HOST else places


def sharding_type(sharding: TableSharding) -> str:
    """How a table is sharded, e.g. `column_wise x 3` or `table_wise, 10% cached`."""
    parts = f" x {len(sharding.columns)}" if len(sharding.columns) > 1 else ""
    cached = "" if sharding.cached_share is None else f", {sharding.cached_share:.0%} cached"
    return f"{sharding.sharding_type}{parts}{cached}"


def tables_of(tables: Tables, sides: Sequence[Side]) -> pd.DataFrame:
    """A row per table, indexed by its number, largest first; `before` is its old place if that has changed."""
    new, old, sums = sides[0], sides[-1].sharding_of, sides[0].pairs.groupby("table")[["gib", "whole"]].sum()
    shardings = [new.sharding_of[name] for name in tables.names]
    frame = pd.DataFrame(
        {
            "name": tables.names,
            "rows": tables.rows.numpy(),
            "dim": tables.dim.numpy(),
            "pooling": tables.pooling_factor.numpy().round(4),
            "lookups": tables.lookups.numpy(),
            "type": [sharding_type(now) for now in shardings],
            "where": [where(now) for now in shardings],
            "before": [_before(old.get(name), now) for name, now in zip(tables.names, shardings, strict=True)],
            "gib": sums["gib"],
            "whole": sums["whole"],
        },
        index=range(len(tables)),
    )
    return frame.sort_values(new.size, ascending=False, kind="stable")


def _before(old: TableSharding | None, now: TableSharding) -> str:
    if old is None:
        return "new"
    kind = f" ({sharding_type(old)})" * (sharding_type(old) != sharding_type(now))
    return "" if old == now else where(old) + kind


def parts_of(side: Side, moved: Collection[tuple[int, int | None]], most: int = _MOST_PARTS) -> pd.DataFrame:
    """The parts of a side's bars, stacked on each device: tables, largest first, then `WAITING`.

    Args:
        side: whose bars they are.
        moved: tables and devices to highlight.
        most: parts of all bars; a device's smallest tables beyond it become one part, `OTHERS`.

    Returns:
        `table`, `device`, `moved`, and the `SIZES`.
    """
    frame = side.pairs.assign(waits=side.pairs["table"] == WAITING)
    frame["moved"] = [pair in moved for pair in zip(frame["table"], frame["device"], strict=True)]
    frame = frame[~frame["waits"] | (frame["whole"] > 0)]
    frame = frame.sort_values(["device", "waits", side.size, "table"], ascending=[True, True, False, True])
    alone = frame.groupby("device").cumcount() < max(_FEWEST_PARTS, most // side.pairs["device"].nunique())
    frame["table"] = frame["table"].where(alone | frame["moved"] | frame["waits"], OTHERS)
    return frame.groupby(["device", "table"], sort=False, as_index=False).sum().astype({"moved": bool})


def html_page(placed: Placed) -> str:
    """The page; it asks for nothing from a network."""
    task, sides = placed.request.task, sides_of(placed)
    tables, capacity_gib = tables_of(task.tables, sides), float(task.capacity_bytes.max()) / 2**30
    widest = pd.concat([side.sums for side in sides]).max().clip(lower=1e-12)
    if capacity_gib < 4 * widest["gib"]:
        widest["gib"] = max(widest["gib"], capacity_gib)
    number = {name: t for t, name in enumerate(task.tables.names)}
    moves = [(number[step.table], step) for step in placed.steps if step.source is not None]
    moved = [{(t, getattr(step, end)) for t, step in moves} for end in ("target", "source")]
    bars = [dict(_bars(side, tables, changed)) for side, changed in zip(sides, moved, strict=False)]
    known_ms = placed.plan.predicted.overall_ms, placed.kept.overall_ms if placed.kept else None
    costs_ms = [side.sums["whole"].max() if ms is None else ms for side, ms in zip(sides, known_ms, strict=False)]
    devices = [*range(max(len(side.sums) for side in sides))]
    if len(devices) > _SCREEN:  # the slowest first
        devices = [*sides[0].sums[sides[0].size].reindex(devices).sort_values(ascending=False).index]
    page: str = _TEMPLATES.get_template("plan_page.html").render(
        placed=placed,
        sides=sides,
        sizes=SIZES,
        widest=widest,
        costs_ms=costs_ms if sides[0].size == "whole" else [],
        devices=[(d, [side[d] for side in bars if d in side]) for d in devices],
        capacity_bytes=task.capacity_bytes.tolist(),
        counted=counted,
        gib=gib,
        slowest=device_rows(placed)[0],
        unmeasured=unmeasured_sentence(placed.plan),
        tables=tables.to_dict("records"),
    )
    return page


def _bars(
    side: Side, tables: pd.DataFrame, moved: Collection[tuple[int, int | None]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each device with its sums and the parts of its bar: figures of their tables."""
    about = tables.drop(columns=["gib", "whole"]).astype(object)
    about["colour"] = [colour for _, colour in zip(tables.index, cycle(_PALETTE), strict=False)]
    parts = parts_of(side, moved).join(pd.concat([about, pd.DataFrame(_NO_TABLE).T]), on="table")
    by_device = dict(iter(parts.groupby("device")))
    for d, sums in side.sums.iterrows():
        is_slowest = side.size == "whole" and d == side.sums["whole"].idxmax() and len(side.sums) > 1
        on_device = by_device[d].to_dict("records") if d in by_device else []
        yield d, {"parts": on_device, "sums": sums.tolist(), "is_slowest": is_slowest}


def device_rows(placed: Placed) -> tuple[str, list[dict[str, Any]]]:
    """The slowest device in words, and a row per device for a terminal, slowest first: a bar, and its heaviest tables.

    Without costs it is the fullest device, and devices are in the order of their memory.
    """
    side, names, said, rows = sides_of(placed)[0], placed.request.task.tables.names, "", []
    size, unit, how = ("whole", "ms", "slowest") if side.size == "whole" else ("gib", "GiB", "fullest")
    sums = side.sums.sort_values(size, ascending=False, kind="stable")
    for d, of_device in sums.head(_SCREEN).iterrows():
        heaviest = side.pairs[(side.pairs["device"] == d) & (side.pairs["table"] != WAITING)].nlargest(_TOP, size)
        listed = [f"{names[t]} {figure:.3g}" for t, figure in zip(heaviest["table"], heaviest[size], strict=True)]
        said = said or (
            f"device {d} is the {how} of {len(sums)}: {names[heaviest['table'].iloc[0]]} takes "
            f"{heaviest[size].iloc[0]:.3g} of its {of_device[size]:.3g} {unit}"
        )
        bar = "█" * round(_BAR * of_device[size] / max(sums[size].max(), 1e-12))
        sizes = {unit: of_device[size], "GiB": of_device["gib"]}
        rows.append({"device": d, "": bar, **sizes, f"heaviest tables, {unit}": listed})
    return said, rows
