"""Bars of each device's cost and memory, stacked by table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from flows.reports.plan_view.bars import draw_bars, draw_strips, draw_totals, lanes, source_columns, table_colours
from flows.reports.plan_view.data import PlanView, Side
from flows.reports.plan_view.segments import OTHERS, REST, segments

CAPACITY_COLOUR = "#d1495b"
_SCREEN = 16  # devices


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


def _sides(view: PlanView) -> list[Side]:
    return [view.side] if view.before is None else [view.side, view.before]


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
    for side, lane, moved in zip(_sides(view), lanes(view), (view.moved_to, view.moved_from), strict=False):
        if by_cost and side.shares.phases_ms is None:
            continue
        made = segments(side, moved, by_cost=by_cost)
        source = ColumnDataSource(source_columns(made, colours, by_cost=by_cost, side=side, pale=lane.pale))
        kinds |= {OTHERS, REST} & set(made.table.tolist())
        totals, text = draw_totals(plot, rows, side, lane, by_cost=by_cost)
        hovered.append(draw_bars(plot, rows, source, lane))
        strips = draw_strips(plot, rows, side, lane) if by_cost else None
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
