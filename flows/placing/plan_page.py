"""The page of a plan as one file: its figures, and their charts and lists."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle

import pandas as pd  # type: ignore[import-untyped]
import torch
from bokeh import models
from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.plotting import figure
from bokeh.resources import Resources
from bokeh.transform import dodge
from jinja2 import Environment

from dreamshard.costs import PHASES
from dreamshard.explain import table_shares
from dreamshard.files.text import gib
from dreamshard.moving import Step
from dreamshard.placement import ON_ONE_HOST, Placement, TableSharding
from dreamshard.search.costs import Predictor
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from flows.placing.request import Placed
from flows.placing.sentences import unmeasured_sentence

OTHERS, WAITING = -1, -2
"""Numbers of parts that are no table: a device's small tables together, and its wait for the other devices."""

SIZES = ("whole", *PHASES, "gib")
"""Sizes that a chart stacks: milliseconds of the whole step, or of one phase; GiB of device memory."""

_MOST_PARTS = 8000  # of all bars of a chart
_FEWEST_PARTS = 6  # of one bar
_FEW = 8  # devices that are listed one by one

_TEMPLATE = files(__package__).joinpath("plan_page.html").read_text()
_STYLE = files(__package__).joinpath("plan_page.css").read_text()
_PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
"""Of tables: Paul Tol's light scheme, on which dark text is readable and which colour-blind people tell apart."""
_COLOURS = {"plan": _PALETTE[0], "others": "#c9cacf", "waiting": "#9a9ca5", "moved": "#d6006c", "room": "#d1495b"}
_INK, _SOFT = "#16181d", "#767a84"  # of names in bars, and of sums next to them, on light and dark pages
_PALE = 0.45  # opacity of the bars of the plan in use
_MEMORY = SIZES.index("gib")
_SCREEN = 16  # devices that a screen shows
_LANES = {1: [(0.0, 0.76)], 2: [(0.22, 0.42), (-0.24, 0.32)]}  # middle and height of bars in a row from -0.5 to 0.5
_ABOUT = {OTHERS: "its smaller tables", WAITING: "no table of this device: it waits for others"}
_SMALL = {"text_baseline": "middle", "text_font_size": "11px"}

# names the parts of bars that are wide enough; names often differ at their ends, so both ends stay
_NAME = """
const scale = plot.inner_width / (plot.x_range.end - plot.x_range.start)
for (const {data, change} of sources) {
  for (let i = 0; i < data.name.length; i++) {
    const name = data.name[i], room = Math.floor(((data["right" + k][i] - data["left" + k][i]) * scale - 8) / 6.8)
    const half = Math.floor(room / 2)
    const ends = name.slice(0, room - 1 - half) + "…" + name.slice(-half)
    data["label" + k][i] = room >= name.length ? name : room < 9 ? "" : ends
  }
  change.emit()
}
"""


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
            "from": ["loaded" if step.source is None else str(step.source) for step in steps],
            "to": [str(step.target) for step in steps],
            "MiB": [step.memory_bytes / 2**20 for step in steps],
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


def html_page(placed: Placed) -> str:
    """The page; it asks for nothing from a network."""
    task, sides = placed.request.task, sides_of(placed)
    tables, has_costs = tables_of(task.tables, sides), sides[0].size == "whole"
    sources = _bar_sources(placed, sides, tables)
    numbers = [*range(max(len(side.sums) for side in sides))]
    if len(numbers) > _SCREEN:  # the slowest first
        numbers = [*sides[0].sums[sides[0].size].reindex(numbers).sort_values(ascending=False).index]
    rows = models.FactorRange(factors=[str(d) for d in reversed(numbers)])
    capacity = (task.capacity_bytes.double() / 2**30).tolist()
    roots: dict[str, models.UIElement] = {"memory": _chart(sides, rows, sources, _MEMORY, capacity)}
    if has_costs:
        charts = [_chart(sides, rows, sources, k, capacity) for k in range(_MEMORY)]
        for k, chart in enumerate(charts):
            chart.visible = k == 0
        labels = ["whole step", *(phase.replace("_", " ") for phase in PHASES)]
        phase = models.RadioButtonGroup(labels=labels, active=0, stylesheets=[_STYLE])
        code = "charts.forEach((chart, k) => { chart.visible = k == this.active })"
        phase.js_on_change("active", models.CustomJS(args={"charts": charts}, code=code))
        roots |= {"phase": phase, "cost": column(*charts, sizing_mode="stretch_width")}
    document = Document()
    for name, root in roots.items():
        root.name = name
        document.add_root(root)
    page: str = file_html(
        document,
        resources=Resources(mode="inline", minified=True),
        title=f"{task.name}: {len(task.tables)} tables on {task.num_devices} devices",
        template=Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_TEMPLATE),
        template_variables={
            "style": _STYLE,
            "placed": placed,
            "task": task,
            "sides": sides,
            "overall_ms": [side.sums["whole"].max() for side in sides] if has_costs else [],
            "kinds": {kind for source in sources for kind in source.data["table"]},
            "colours": _COLOURS,
            "pale": _PALE,
            "capacity": [gib(int(size)) for size in (task.capacity_bytes.min(), task.capacity_bytes.max())],
            "gib": gib,
            "unmeasured": unmeasured_sentence(placed.plan),
            "tables": _table_list(sides, tables, has_costs),
            "moves": _list(moves_of(placed.steps)),
        },
        suppress_callback_warning=True,
    )
    return page


def _bar_sources(placed: Placed, sides: list[Side], tables: pd.DataFrame) -> list[models.ColumnDataSource]:
    """The parts of each side's bars, with the text for a part under the pointer."""
    number = {name: t for t, name in enumerate(placed.request.task.tables.names)}
    moves = [(number[step.table], step) for step in placed.steps if step.source is not None]
    colours = dict(zip(tables.index, cycle(_PALETTE), strict=False))  # of one size rank to the next
    colours |= {OTHERS: _COLOURS["others"], WAITING: _COLOURS["waiting"]}
    about = tables.drop(columns=["gib", "whole", "lookups"]).assign(rows=tables["rows"].map("{:,}".format))
    sources = []
    for side, end in zip(sides, ("target", "source"), strict=False):
        parts = parts_of(side, {(t, getattr(step, end)) for t, step in moves})
        parts = parts.join(about.astype(object), on="table")
        parts["name"] = parts["name"].fillna(parts["table"].map(_ABOUT))
        parts["colour"] = parts["table"].map(colours)
        parts = parts.fillna("-").assign(side=side.name, **{f"label{k}": "" for k in range(len(SIZES))})
        sources.append(models.ColumnDataSource(dict(parts.astype({"device": str, "moved": float}))))
    return sources


def _chart(
    sides: list[Side], rows: models.FactorRange, sources: list[models.ColumnDataSource], k: int, capacity: list[float]
) -> figure:
    """Bars of one size of `SIZES`: of each device, and below it of the plan in use."""
    by_cost, num_devices = k != _MEMORY, len(rows.factors)
    many, pixels = num_devices > _SCREEN, (36, 26, 20) if len(sides) == 1 else (54, 42, 36)
    widest = max(side.sums[SIZES[k]].max() for side in sides)
    shown = max(widest, 0 if by_cost or max(capacity) > 4 * widest else max(capacity)) or 1
    plot = figure(
        y_range=rows,
        x_range=models.Range1d(0, (1.2 if k == 0 else 1.12) * shown),
        height=num_devices * pixels[many + (num_devices > 3 * _SCREEN)] + 64,
        sizing_mode="stretch_width",
        tools="xwheel_zoom,xpan,reset",
        active_scroll=None,
        toolbar_location=None,
        x_axis_label="predicted ms of a step" if by_cost else "GiB of device memory",
        x_axis_location="above" if many else "below",
        y_axis_label="device" if by_cost else None,
        outline_line_color=None,
    )
    plot.xaxis.ticker = models.BasicTicker(desired_num_ticks=6)
    plot.ygrid.visible = False
    plot.xgrid.level = "underlay"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.minor_tick_line_color = plot.yaxis.major_tick_line_color = None
    hovered = []
    for side, source, (middle, height) in zip(sides, sources, _LANES[len(sides)], strict=True):
        ends = {"left": f"left{k}", "right": f"right{k}", "source": source}
        y, top = (dodge("device", at, range=rows) for at in (middle, middle + height / 2 - 0.035))
        look = {"fill_color": "colour", "fill_alpha": 1 if side is sides[0] else _PALE, "line_color": "white"}
        hovered.append(plot.hbar(y=y, height=height, line_width=0.5, **look, **ends))
        plot.hbar(y=top, height=0.07, fill_color=_COLOURS["moved"], fill_alpha="moved", line_color=None, **ends)
        if height * plot.height / num_devices >= 9:
            plot.text(f"left{k}", y, f"label{k}", source=source, text_color=_INK, x_offset=4, **_SMALL)
        plot.text(value(shown), y, "total", source=_totals(side, k), text_color=_SOFT, x_offset=6, **_SMALL)
    if k == 0:
        slowest = models.Span(location=sides[0].sums["whole"].max(), dimension="height", line_dash="dashed")
        plot.add_layout(slowest)
    if not by_cost:
        lines = models.ColumnDataSource({"device": [str(d) for d in range(len(capacity))], "gib": capacity})
        low, high = (dodge("device", offset, range=rows) for offset in (-0.5, 0.5))
        plot.segment("gib", low, "gib", high, source=lines, line_width=2, line_color=_COLOURS["room"], name="room")
    plot.add_tools(models.HoverTool(renderers=hovered, tooltips=_tooltips(sources[0].data, k)))
    naming = models.CustomJS(args={"sources": sources, "plot": plot, "k": k}, code=_NAME)
    plot.js_on_change("inner_width", naming)
    plot.x_range.js_on_change("end", naming)
    return plot


def _totals(side: Side, k: int) -> models.ColumnDataSource:
    """The sum of each bar, and which device is the slowest."""
    sums = side.sums[SIZES[k]]
    slowest = sums.idxmax() if k == 0 and len(sums) > 1 else None
    texts = [f"{total:.3g}" + ("  ◀ slowest" if d == slowest else "") for d, total in sums.items()]
    return models.ColumnDataSource({"device": [str(d) for d in sums.index], "total": texts})


def _tooltips(columns: Mapping[str, object], k: int) -> list[tuple[str, str]]:
    """The figures of the part under the pointer."""
    lines = [("table", "@name"), ("device", "@device"), ("of the", "@side")]
    lines += [("rows", "@rows"), ("dim", "@dim"), ("pooling factor", "@pooling")]
    if k != _MEMORY:
        phases = " + ".join(f"@{phase}{{0.000}}" for phase in PHASES)
        lines += [("cost here, ms", f"@{SIZES[k]}{{0.000}}"), ("by phase", phases)]
    lines += [("memory here, GiB", "@gib{0.0000}"), ("way to shard", "@way"), ("on devices", "@where")]
    return lines + ([("was on", "@before")] if "before" in columns else [])


def _table_list(sides: list[Side], tables: pd.DataFrame, has_costs: bool) -> str:
    titles = {
        "name": "table",
        "rows": "rows",
        "dim": "dim",
        "pooling": "pooling factor",
        "lookups": "lookups in a batch",
        "way": "way to shard",
        "where": "devices",
        "gib": "memory, GiB",
        **({"whole": "share of cost, ms"} if has_costs else {}),
        **({"before": f"devices, {sides[1].name}"} if len(sides) > 1 else {}),
    }
    return _list(tables[[*titles]].rename(columns=titles))


def _list(rows: pd.DataFrame) -> str:
    counts = dict.fromkeys(rows.select_dtypes("integer"), "{:,}".format)
    html: str = rows.to_html(index=False, border=0, classes="list", formatters=counts, float_format="{:,.4f}".format)
    return html
