"""Bars of each device's cost and memory, stacked by table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    FactorRange,
    GlyphRenderer,
    HoverTool,
    Range1d,
    Span,
)
from bokeh.plotting import figure
from bokeh.transform import dodge

from dreamshard.costs import PHASES
from flows.reports.plan_view import scripts
from flows.reports.plan_view.data import PlanView, Side
from flows.reports.plan_view.segments import OTHERS, REST, Segments, segments
from flows.reports.timeline import PHASE_COLOURS

PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
"""Of tables: Paul Tol's light scheme, on which dark text is readable and which colour-blind people tell apart."""

OTHER_COLOUR, REST_COLOUR = "#c9cacf", "#9a9ca5"
CAPACITY_COLOUR, MOVED_COLOUR = "#d1495b", "#d6006c"
_PALE = 0.55  # of white in the bars of the plan in use
_SCREEN = 16  # devices
_MARK = 0.07  # of a row, above a part that moves
INK = "#16181d"  # of names in bars, on light and dark pages


@dataclass(frozen=True)
class _Lane:
    """Where a side's bar is in a device's row, whose middle is 0 and whose height is 1."""

    middle: float
    height: float
    strip: float  # the middle of the bar of its phases
    strip_height: float
    pale: bool


_ALONE = _Lane(0.09, 0.66, -0.34, 0.12, pale=False)
_NEW, _BEFORE = _Lane(0.25, 0.36, 0.015, 0.07, pale=False), _Lane(-0.2, 0.28, -0.39, 0.07, pale=True)


@dataclass(frozen=True)
class Chart:
    """One chart and what scripts need of it.

    Attributes:
        plot: of Bokeh.
        parts: source of the parts of each side's bars.
        totals: glyphs of text beside the bars.
        spans: lines across the chart.
        kinds: `OTHERS` and `REST` where a bar has such a part.
        named: script that names parts of bars that are wide enough.
        stacked: script that stacks them.
    """

    plot: figure
    parts: tuple[ColumnDataSource, ...]
    totals: tuple[Any, ...]
    spans: tuple[Span, ...]
    kinds: frozenset[int]
    named: CustomJS
    stacked: CustomJS


def row_pixels(view: PlanView) -> int:
    """Height of a device's row: smaller where there are many."""
    both, devices = view.before is not None, view.num_devices
    return (
        (54 if both else 36) if devices <= _SCREEN else (42 if both else 26) if devices <= 48 else (36 if both else 20)
    )


def many_devices(view: PlanView) -> bool:
    """Whether there are more devices than a screen shows."""
    return view.num_devices > _SCREEN


def device_rows(view: PlanView) -> FactorRange:
    """The rows of all charts: the first device on top, or where there are many the slowest one."""
    return FactorRange(factors=orders(view)[many_devices(view)], range_padding=0.1, range_padding_units="absolute")


def orders(view: PlanView) -> tuple[list[str], list[str]]:
    """Devices from the bottom up: by number, and by cost (memory where no costs are known)."""
    devices, shares = list(range(view.num_devices)), view.side.shares
    phases_ms = shares.device_phases_ms
    size = (shares.device_bytes.double() if phases_ms is None else phases_ms.sum(dim=1)).tolist()
    size += [-1.0] * (len(devices) - len(size))
    return [str(d) for d in reversed(devices)], [str(d) for d in sorted(devices, key=lambda d: (size[d], -d))]


def cost_chart(view: PlanView, rows: FactorRange, tables: ColumnDataSource, place: Sequence[int], phase: Any) -> Chart:
    """Milliseconds of a step; `phase` is the choice among the phases."""
    made = _chart(view, rows, f"{view.costs} ms of a step", tables, place, phase, by_cost=True)
    slowest = view.side.overall_ms
    if slowest is not None:
        made.plot.add_layout(made.spans[0])
    return made


def memory_chart(view: PlanView, rows: FactorRange, tables: ColumnDataSource, place: Sequence[int]) -> Chart:
    """GiB of device memory, and what each device has room for."""
    made = _chart(view, rows, "GiB of device memory", tables, place, None, by_cost=False)
    capacity = view.task.capacity_bytes.double() / 2**30
    lines = ColumnDataSource({"device": [str(d) for d in range(len(capacity))], "gib": capacity.numpy()})
    low, high = (dodge("device", offset, range=rows) for offset in (-0.5, 0.5))
    made.plot.segment("gib", low, "gib", high, source=lines, line_width=2, line_color=CAPACITY_COLOUR, name="room")
    made.stacked.args["room"] = float(capacity.max())
    return made


def table_colours(side: Side, place: Sequence[int]) -> list[str]:
    """A colour of each table, so that tables of one device differ as far as there are colours; `place` is their order."""
    devices_of: list[list[int]] = [[] for _ in place]
    for t, d in zip(side.shares.table.tolist(), side.shares.device.tolist(), strict=True):
        devices_of[t].append(d)
    used = np.zeros((side.shares.num_devices, len(PALETTE)))
    colours = [""] * len(place)
    for rank, t in enumerate(sorted(range(len(place)), key=lambda t: place[t])):
        turn = (np.arange(len(PALETTE)) - rank) % len(PALETTE)  # of two that are used alike, the next one
        chosen = int(np.argmin(used[devices_of[t]].sum(axis=0) * len(PALETTE) + turn))
        used[devices_of[t], chosen] += 1
        colours[t] = PALETTE[chosen]
    return colours


def paler(colour: str) -> str:
    """Mixed with white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def _sides(view: PlanView) -> list[Side]:
    return [view.side] if view.before is None else [view.side, view.before]


def _lanes(view: PlanView) -> list[_Lane]:
    return [_ALONE] if view.before is None else [_NEW, _BEFORE]


def _chart(
    view: PlanView,
    rows: FactorRange,
    label: str,
    tables: ColumnDataSource,
    place: Sequence[int],
    phase: Any,
    *,
    by_cost: bool,
) -> Chart:
    plot = figure(
        y_range=rows,
        x_range=Range1d(0, 1),
        height=view.num_devices * row_pixels(view) + 64,
        sizing_mode="stretch_width",
        tools="xwheel_zoom,xpan,reset",
        active_scroll=None,
        toolbar_location=None,
        x_axis_label=label,
        x_axis_location="above" if many_devices(view) else "below",
        outline_line_color=None,
        background_fill_color=None,
        border_fill_color=None,
        output_backend="canvas",
    )
    plot.xaxis.ticker = BasicTicker(desired_num_ticks=6)
    plot.ygrid.visible = False
    plot.xgrid.level = "underlay"
    plot.yaxis.axis_label = "device" if by_cost else None
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.minor_tick_line_color = None
    plot.yaxis.major_tick_line_color = None
    colours = table_colours(view.side, place)
    bars, names, found, texts = [], [], [], []
    hovered: list[GlyphRenderer] = []
    kinds: set[int] = set()
    for side, lane, moved in zip(_sides(view), _lanes(view), (view.moved_to, view.moved_from), strict=False):
        if by_cost and side.shares.phases_ms is None:
            continue
        made = segments(side, moved, by_cost=by_cost)
        source = ColumnDataSource(_columns(made, colours, by_cost=by_cost, side=side, pale=lane.pale))
        kinds |= {OTHERS, REST} & set(made.table.tolist())
        totals, text = _totals(plot, rows, side, lane, by_cost=by_cost)
        hovered.append(_bars(plot, rows, source, lane))
        strips = _strips(plot, rows, side, lane) if by_cost else None
        bars.append({"parts": source, "totals": totals, "strips": strips})
        names.append({"parts": source, "share": lane.height})
        found.append(source)
        texts.append(text)
    plot.add_tools(_hover(view, hovered, tables, place, by_cost=by_cost))
    overall = view.side.overall_ms if by_cost else None
    spans = () if overall is None else (Span(location=overall, dimension="height", line_dash="dashed", line_width=1),)
    across = {"phase": phase, "slowest": spans[0] if spans else None, "room": 0.0}
    stacked = CustomJS(args={"bars": bars, "plot": plot, **across}, code=scripts.STACK)
    named = CustomJS(args={"bars": names, "plot": plot, "tables": tables, "place": list(place)}, code=scripts.NAME)
    plot.js_on_change("inner_width", stacked, named)
    plot.js_on_change("inner_height", named)
    for changed in ("start", "end"):
        plot.x_range.js_on_change(changed, named)
    return Chart(plot, tuple(found), tuple(texts), spans, frozenset(kinds), named, stacked)


def _columns(made: Segments, colours: Sequence[str], *, by_cost: bool, side: Side, pale: bool) -> dict[str, Any]:
    """A source's columns; a script fills in `left`, `right` and `label`."""
    count = len(made.table)
    size = made.phases.sum(axis=1) if by_cost else made.memory_bytes / 2**30
    filled = [{OTHERS: OTHER_COLOUR, REST: REST_COLOUR}.get(t) or colours[t] for t in made.table.tolist()]
    columns: dict[str, Any] = {
        "table": made.table.astype(np.int32),
        "device": [str(d) for d in made.device.tolist()],
        "count": made.count.astype(np.int32),
        "size": size.astype(np.float32),
        "gib": (made.memory_bytes / 2**30).astype(np.float32),
        "left": np.zeros(count, np.float32),
        "right": np.zeros(count, np.float32),
        "label": [""] * count,
        "colour": [paler(colour) for colour in filled] if pale else filled,
        "mark": made.moved.astype(np.float32),
        "side": [side.name] * count,
    }
    columns |= {f"phase{p + 1}": made.phases[:, p].astype(np.float32) for p in range(len(PHASES))} if by_cost else {}
    return columns


def _bars(plot: figure, rows: FactorRange, source: ColumnDataSource, lane: _Lane) -> GlyphRenderer:
    y = dodge("device", lane.middle, range=rows)
    drawn = plot.hbar(
        y=y,
        left="left",
        right="right",
        height=lane.height,
        source=source,
        fill_color="colour",
        line_color="white",
        line_width=0.5,
    )
    drawn.nonselection_glyph.update(fill_alpha=0.15, line_alpha=0.2)
    top = dodge("device", lane.middle + (lane.height - _MARK) / 2, range=rows)
    plot.hbar(
        y=top,
        left="left",
        right="right",
        height=_MARK,
        source=source,
        fill_color=MOVED_COLOUR,
        fill_alpha="mark",
        line_color=None,
    )
    names = plot.text(
        x="left",
        y=y,
        text="label",
        source=source,
        text_baseline="middle",
        x_offset=4,
        text_font_size="11px",
        text_color=INK,
    )
    names.nonselection_glyph = names.glyph
    return drawn


def _totals(plot: figure, rows: FactorRange, side: Side, lane: _Lane, *, by_cost: bool) -> tuple[ColumnDataSource, Any]:
    """What is beside each bar: its sum, and which device is the slowest."""
    devices = side.shares.num_devices
    slowest = side.slowest if by_cost and devices > 1 else None
    source = ColumnDataSource(
        {
            "device": [str(d) for d in range(devices)],
            "end": np.zeros(devices, np.float32),
            "text": [""] * devices,
            "slowest": [int(d == slowest) for d in range(devices)],
        }
    )
    text = plot.text(
        x="end",
        y=dodge("device", lane.middle, range=rows),
        text="text",
        source=source,
        text_baseline="middle",
        x_offset=6,
        text_font_size="11px",
    )
    return source, text.glyph


def _strips(plot: figure, rows: FactorRange, side: Side, lane: _Lane) -> GlyphRenderer | None:
    """A thin bar of the four phases below each device's bar."""
    phases_ms = side.shares.device_phases_ms
    if phases_ms is None:
        return None
    ends = phases_ms.double().cumsum(dim=1).numpy()
    starts = ends - phases_ms.double().numpy()
    devices = [str(d) for d in range(len(ends))]
    source = ColumnDataSource(
        {
            "device": [d for d in devices for _ in PHASES],
            "left": starts.reshape(-1).astype(np.float32),
            "right": ends.reshape(-1).astype(np.float32),
            "colour": list(PHASE_COLOURS.values()) * len(devices),
        }
    )
    strip: GlyphRenderer = plot.hbar(
        y=dodge("device", lane.strip, range=rows),
        left="left",
        right="right",
        height=lane.strip_height,
        source=source,
        color="colour",
    )
    return strip


def _hover(
    view: PlanView,
    renderers: list[GlyphRenderer],
    tables: ColumnDataSource,
    place: Sequence[int],
    *,
    by_cost: bool,
) -> HoverTool:
    """What is said of the part under the pointer."""
    lines = [("table", "@table{name}"), ("device", "@device")]
    if view.before is not None:
        lines.append(("of the", "@side"))
    lines += [("rows", "@table{rows}"), ("dim", "@table{dim}"), ("pooling factor", "@table{pooling}")]
    if by_cost:
        phases = " + ".join(f"@phase{p + 1}{{0.000}}" for p in range(len(PHASES)))
        lines += [("cost here, ms", "@size{0.000}"), ("by phase", phases)]
    lines += [("memory here, GiB", "@gib{0.0000}"), ("way to shard", "@table{way}"), ("on devices", "@table{where}")]
    if view.before is not None and view.moves:
        lines.append(("was on", "@table{before}"))
    lookup = CustomJSHover(args={"tables": tables, "place": list(place)}, code=scripts.HOVER)
    return HoverTool(renderers=renderers, tooltips=lines, formatters={"@table": lookup})
