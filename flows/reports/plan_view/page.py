"""The page of a plan as one file."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

import pandas as pd  # type: ignore[import-untyped]
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
from dreamshard.files.text import gib
from flows.reports.plan_view.view import (
    OTHERS,
    SIZES,
    WAITING,
    PlanView,
    Side,
    colours_of,
    moves_of,
    parts_of,
    tables_of,
)

_TEMPLATE = files(__package__).joinpath("page.html").read_text()
_STYLE = files(__package__).joinpath("page.css").read_text()
_PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
"""Of tables: Paul Tol's light scheme, on which dark text is readable and which colour-blind people tell apart."""
_OTHERS, _WAITING, _MOVED, _ROOM = "#c9cacf", "#9a9ca5", "#d6006c", "#d1495b"
_INK, _SOFT = "#16181d", "#767a84"  # of names in bars, and of sums beside them, on light and dark pages
_PALE = 0.55  # of white in the bars of the plan in use
_MEMORY = SIZES.index("gib")
_SCREEN = 16  # devices that a screen shows
_LANES = {1: [(0.0, 0.76)], 2: [(0.22, 0.42), (-0.24, 0.32)]}  # middle and height of bars in a row from -0.5 to 0.5
_ABOUT = {OTHERS: "its smaller tables", WAITING: "no table of this device: it waits for others"}

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


def plan_html(view: PlanView) -> str:
    """The page; it asks for nothing from a network."""
    tables = tables_of(view)
    table_source = models.ColumnDataSource({"table": tables.index, **tables})
    sources = [_bar_source(view, number, tables) for number in range(len(view.sides))]
    shown = [str(d) for d in reversed(range(view.num_devices))]
    if view.num_devices > _SCREEN:  # the slowest first
        shown.sort(key=lambda d: _size_of(view.side, int(d)))
    rows = models.FactorRange(factors=shown)
    roots: dict[str, models.UIElement] = {"memory": _chart(view, rows, sources, _MEMORY)}
    if view.has_costs:
        charts = [_chart(view, rows, sources, k) for k in range(_MEMORY)]
        for k, chart in enumerate(charts):
            chart.visible = k == 0
        phase = _choice(["whole step", *(phase.replace("_", " ") for phase in PHASES)])
        code = "charts.forEach((chart, k) => { chart.visible = k == this.active })"
        phase.js_on_change("active", models.CustomJS(args={"charts": charts}, code=code))
        roots |= {"phase": phase, "cost": column(*charts, sizing_mode="stretch_width")}
    roots["tables"] = _table_list(view, table_source)
    if view.steps:
        roots["moves"] = _move_list(view)
    document = Document()
    for name, root in roots.items():
        root.name = name
        document.add_root(root)
    page: str = file_html(
        document,
        resources=Resources(mode="inline", minified=True),
        title=f"{view.title}: {_count(len(view.task.tables), 'table')} on {_count(view.task.num_devices, 'device')}",
        template=Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_TEMPLATE),
        template_variables={
            "style": _STYLE,
            "view": view,
            "subtitle": _subtitle(view),
            "legend": _legend(view, sources),
            "moves_heading": _moves_heading(view),
        },
        suppress_callback_warning=True,
    )
    return page


def _bar_source(view: PlanView, number: int, tables: pd.DataFrame) -> models.ColumnDataSource:
    """The parts of a side's bars, with all that is said of a part under the pointer."""
    side = view.sides[number]
    parts = parts_of(side, view.moved()[number])
    colours: Mapping[int, str] = colours_of(view.side, tables.index, _PALETTE) | {OTHERS: _OTHERS, WAITING: _WAITING}
    shown = tables.reindex(parts["table"])
    columns: dict[str, Sequence[object]] = {
        "device": parts["device"].astype(str).tolist(),
        "table": parts["table"].to_numpy("int32"),
        "side": [side.name] * len(parts),
        "colour": [_paler(colours[t]) if number else colours[t] for t in parts["table"]],
        "mark": parts["moved"].to_numpy("float32"),
        "name": shown["name"].fillna(parts["table"].map(_ABOUT).set_axis(shown.index)).tolist(),
    }
    for name in ("rows", "dim", "pooling", "way", "where", "before"):
        if name in shown:
            columns[name] = [
                "-" if pd.isna(value) else f"{value:,}" if name == "rows" else value for value in shown[name]
            ]
    for k, name in enumerate(SIZES):
        ends = {f"{end}{k}": parts[f"{end}{k}"].to_numpy("float32") for end in ("left", "right")}
        columns |= ends | {f"label{k}": [""] * len(parts), name: parts[name].to_numpy("float32")}
    return models.ColumnDataSource(columns)


def _chart(view: PlanView, rows: models.FactorRange, sources: list[models.ColumnDataSource], k: int) -> figure:
    """Bars of one size of `SIZES`: of each device, and below it of the plan in use."""
    by_cost, many = k != _MEMORY, view.num_devices > _SCREEN
    pixels = (36, 26, 20) if view.before is None else (54, 42, 36)
    capacity = (view.task.capacity_bytes.double() / 2**30).tolist()
    widest = max(float(max(source.data[f"right{k}"], default=0)) for source in sources)
    room = max(capacity) if not by_cost and max(capacity) <= 4 * widest else 0
    shown = max(widest, room) or 1
    plot = figure(
        y_range=rows,
        x_range=models.Range1d(0, (1.2 if k == 0 else 1.12) * shown),
        height=view.num_devices * pixels[many + (view.num_devices > 3 * _SCREEN)] + 64,
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
    for side, source, (middle, height) in zip(view.sides, sources, _LANES[len(sources)], strict=True):
        ends = {"left": f"left{k}", "right": f"right{k}", "source": source}
        y = dodge("device", middle, range=rows)
        bars = plot.hbar(y=y, height=height, fill_color="colour", line_color="white", line_width=0.5, **ends)
        hovered.append(bars)
        top = dodge("device", middle + height / 2 - 0.035, range=rows)
        plot.hbar(y=top, height=0.07, fill_color=_MOVED, fill_alpha="mark", line_color=None, **ends)
        if height * plot.height / view.num_devices >= 9:
            text = {"text_baseline": "middle", "text_font_size": "11px", "text_color": _INK, "x_offset": 4}
            plot.text(x=f"left{k}", y=y, text=f"label{k}", source=source, **text)
        totals = {"text": "total", "source": _totals(side, k), "text_color": _SOFT, "x_offset": 6}
        plot.text(x=value(shown), y=y, text_baseline="middle", text_font_size="11px", **totals)
    if k == 0:
        plot.add_layout(models.Span(location=max(view.side.device_ms), dimension="height", line_dash="dashed"))
    if not by_cost:
        lines = models.ColumnDataSource({"device": [str(d) for d in range(len(capacity))], "gib": capacity})
        low, high = (dodge("device", offset, range=rows) for offset in (-0.5, 0.5))
        plot.segment("gib", low, "gib", high, source=lines, line_width=2, line_color=_ROOM, name="room")
    plot.add_tools(_hover(view, hovered, k))
    naming = models.CustomJS(args={"sources": sources, "plot": plot, "k": k}, code=_NAME)
    plot.js_on_change("inner_width", naming)
    plot.x_range.js_on_change("end", naming)
    return plot


def _totals(side: Side, k: int) -> models.ColumnDataSource:
    """The sum of each bar, and which device is the slowest."""
    phases_ms, texts = side.shares.device_phases_ms, []
    for d, held in enumerate(side.shares.device_bytes.tolist()):
        if k == _MEMORY or phases_ms is None:
            texts.append(f"{held / 2**30:.3g}")
            continue
        slowest = k == 0 and len(phases_ms) > 1 and d == side.device_ms.index(max(side.device_ms))
        ms = float(phases_ms[d].sum() if k == 0 else phases_ms[d, k - 1])
        texts.append(f"{ms:.3g}" + ("  ◀ slowest" if slowest else ""))
    return models.ColumnDataSource({"device": [str(d) for d in range(len(texts))], "total": texts})


def _hover(view: PlanView, renderers: list[object], k: int) -> models.HoverTool:
    """The figures of the part under the pointer."""
    lines = [("table", "@name"), ("device", "@device")]
    lines += [("of the", "@side")] if view.before is not None else []
    lines += [("rows", "@rows"), ("dim", "@dim"), ("pooling factor", "@pooling")]
    if k != _MEMORY:
        phases = " + ".join(f"@{phase}{{0.000}}" for phase in PHASES)
        lines += [("cost here, ms", f"@{SIZES[k]}{{0.000}}"), ("by phase", phases)]
    lines += [("memory here, GiB", "@gib{0.0000}"), ("way to shard", "@way"), ("on devices", "@where")]
    lines += [("was on", "@before")] if view.steps else []
    return models.HoverTool(renderers=renderers, tooltips=lines)


def _table_list(view: PlanView, source: models.ColumnDataSource) -> models.UIElement:
    shown = [
        _column("name", "table", 220),
        _column("rows", "rows", 100, "0,0"),
        _column("dim", "dim", 60, "0,0"),
        _column("pooling", "pooling factor", 100, "0,0.[00]"),
        _column("lookups", "lookups in a batch", 120, "0,0"),
        _column("way", "way to shard", 170),
        _column("where", "devices", 110),
        _column("gib", "memory, GiB", 100, "0,0.0000"),
    ]
    shown += [_column("ms", "share of cost, ms", 130, "0,0.000")] if view.has_costs else []
    shown += [_column("before", f"devices, {view.before.name}", 130)] if view.before is not None else []
    return _list(shown, source, "name", "filter tables by name")


def _move_list(view: PlanView) -> models.UIElement:
    shown = [
        _column("step", "step", 50, "0,0"),
        _column("kind", "what", 60),
        _column("table", "table", 220),
        _column("part", "part", 200),
        _column("source", "from", 80),
        _column("target", "to", 80),
        _column("mib", "MiB", 100, "0,0.00"),
        _column("stay", "a step's ms more if the table stayed", 220, "0,0.000"),
    ]
    return _list(shown, models.ColumnDataSource(dict(moves_of(view))), "table", "filter moves by table")


def _list(shown: list[models.TableColumn], source: models.ColumnDataSource, named: str, says: str) -> models.UIElement:
    """A list to sort, and the entry that filters it by name."""
    entry = models.TextInput(placeholder=says, width=320, stylesheets=[models.InlineStyleSheet(css=_STYLE)])
    matching = (
        "return source.data[named].map(name => name.toLowerCase().includes(entry.value_input.trim().toLowerCase()))"
    )
    entry.js_on_change("value_input", models.CustomJS(args={"source": source}, code="source.change.emit()"))
    table = models.DataTable(
        source=source,
        view=models.CDSView(filter=models.CustomJSFilter(args={"entry": entry, "named": named}, code=matching)),
        columns=shown,
        index_position=None,
        row_height=26,
        height=min(560, 50 + 26 * len(source.data[named])),
        sizing_mode="stretch_width",
        autosize_mode="force_fit",
        reorderable=False,
        css_classes=["list"],
        stylesheets=[models.InlineStyleSheet(css=_STYLE)],
    )
    return column(entry, table, sizing_mode="stretch_width")


def _column(field: str, title: str, width: int, number: str | None = None) -> models.TableColumn:
    if number is None:
        return models.TableColumn(field=field, title=title, width=width, formatter=models.StringFormatter())
    formatter = models.NumberFormatter(format=number, text_align="right", nan_format="-")
    return models.TableColumn(field=field, title=title, width=width, formatter=formatter, default_sort="descending")


def _choice(labels: list[str]) -> models.RadioButtonGroup:
    return models.RadioButtonGroup(labels=labels, active=0, stylesheets=[models.InlineStyleSheet(css=_STYLE)])


def _size_of(side: Side, device: int) -> float:
    """What orders devices: cost, or memory if no costs are known."""
    sizes = side.device_ms or side.shares.device_bytes.tolist()
    return float(sizes[device]) if device < len(sizes) else -1.0


def _paler(colour: str) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _subtitle(view: PlanView) -> str:
    device_ms = view.side.device_ms
    if not device_ms:
        return "No cost is predicted, so the page shows memory alone."
    overall = max(device_ms)
    text = f"{view.side.name}: {overall:.3f} ms predicted"
    text += f", device {device_ms.index(overall)} is the slowest" if len(device_ms) > 1 else ""
    if view.before is not None and view.before.device_ms:
        former = max(view.before.device_ms)
        saved = 1 - overall / former if former else 0.0
        gain = f"costs {abs(saved):.1%} {'less' if saved >= 0 else 'more'}"
        text += f"; {view.before.name}: {former:.3f} ms, so {view.side.name} {gain}"
    return text


def _moves_heading(view: PlanView) -> str:
    moved = [step for step in view.steps if step.kind == "move"]
    tables = {step.table for step in moved}
    cut = {step.table for step in view.steps if step.kind == "cut"} - tables
    total = sum(step.memory_bytes for step in moved) / 2**30
    return f"Moves: {_count(len(tables), 'table')}, {total:.3g} GiB" + (
        f"; {_count(len(cut), 'table')} re-split" if cut else ""
    )


def _legend(view: PlanView, sources: list[models.ColumnDataSource]) -> list[tuple[str, str, str]]:
    """Label, style and class of each sign."""
    signs, kinds = [], {int(t) for source in sources for t in source.data["table"]}
    if view.before is not None:
        signs.append((f"upper bar: {view.side.name}", f"background:{_PALETTE[0]}", ""))
        signs.append((f"lower, pale bar: {view.before.name}", f"background:{_paler(_PALETTE[0])}", ""))
    if any(view.moved()):
        signs.append(("moves", f"background:{_PALETTE[0]};border-color:{_MOVED}", "moved"))
    signs += [("smaller tables together", f"background:{_OTHERS}", "")] if OTHERS in kinds else []
    signs += [("waiting: no table of the device", f"background:{_WAITING}", "")] if WAITING in kinds else []
    return [
        *signs,
        (f"room for tables (at most {gib(int(view.task.capacity_bytes.max()))})", f"background:{_ROOM}", "room"),
    ]
