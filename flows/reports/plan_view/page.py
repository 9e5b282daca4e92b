"""The page of a plan as one file."""

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.events import DocumentReady
from bokeh.models import ColumnDataSource, CustomJS, InlineStyleSheet, RadioButtonGroup
from bokeh.resources import Resources
from jinja2 import Environment, Template

from dreamshard.costs import PHASES
from dreamshard.files.text import gib
from flows.reports.plan_view import scripts, styles
from flows.reports.plan_view.bars import MOVED_COLOUR, OTHER_COLOUR, PALETTE, REST_COLOUR, paler
from flows.reports.plan_view.charts import (
    CAPACITY_COLOUR,
    Chart,
    cost_chart,
    device_rows,
    many_devices,
    memory_chart,
    orders,
)
from flows.reports.plan_view.data import PlanView, table_columns
from flows.reports.plan_view.lists import move_list, table_list
from flows.reports.plan_view.segments import OTHERS, REST
from flows.reports.timeline import PHASE_COLOURS

_ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)

_PAGE = """\
{% from macros import embed %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{{ style | safe }}</style>
{{ bokeh_css | safe }}
{{ bokeh_js | safe }}
</head>
<body>
<main>
<h1>{{ heading }}</h1>
<p class="sub">{{ subtitle }}</p>
<dl class="facts">
{% for label, text in facts %}
<div class="fact"><dt>{{ label }}</dt><dd>{{ text }}</dd></div>
{% endfor %}
</dl>
{% if warning %}<p class="warning"><b>Warning:</b> {{ warning }}</p>{% endif %}
<h2>Devices</h2>
<div class="controls">
{% if has_costs %}<div>cost of {{ embed(roots.phase) | safe }}</div>{% endif %}
<div>devices {{ embed(roots.order) | safe }}</div>
</div>
<div class="legend">
{% for label, style, kind in legend %}<span><i class="{{ kind }}" style="{{ style | safe }}"></i>{{ label }}</span>
{% endfor %}
</div>
<div class="charts{{ '' if has_costs else ' single' }}">
{% if has_costs %}<div>{{ embed(roots.cost) | safe }}</div>{% endif %}
<div>{{ embed(roots.memory) | safe }}</div>
</div>
{% if has_moves %}
<h2>{{ moves_heading }}</h2>
{{ embed(roots.move_filter) | safe }}
{{ embed(roots.moves) | safe }}
{% endif %}
<h2>Tables</h2>
{{ embed(roots.table_filter) | safe }}
{{ embed(roots.tables) | safe }}
<h2>How to read this page</h2>
<ul class="notes">
{% for note in notes %}<li>{{ note }}</li>
{% endfor %}
</ul>
</main>
{{ plot_script | safe }}
</body>
</html>
"""


def plan_html(view: PlanView) -> str:
    """The page; it asks for nothing from a network."""
    columns = table_columns(view)
    place = [0] * len(columns.order)
    for position, table in enumerate(columns.order):
        place[table] = position
    tables = ColumnDataSource(dict(columns.columns))
    document = Document()
    rows = device_rows(view)
    order = _choice(["by number", "slowest first" if view.has_costs else "fullest first"], int(many_devices(view)))
    order.js_on_change("active", CustomJS(args={"rows": rows, "orders": list(orders(view))}, code=scripts.ORDER))
    roots = {"order": order}
    charts = [memory_chart(view, rows, tables, place)]
    roots["memory"] = charts[0].plot
    if view.has_costs:
        phase = _choice(["whole step", *(phase.replace("_", " ") for phase in PHASES)])
        cost = cost_chart(view, rows, tables, place, phase)
        phase.js_on_change("active", cost.stacked, cost.named)
        roots |= {"phase": phase, "cost": cost.plot}
        charts.append(cost)
    roots["table_filter"], roots["tables"] = table_list(view, columns, tables)
    moves = move_list(view)
    if moves is not None:
        roots["move_filter"], roots["moves"] = moves
    parts = [source for chart in charts for source in chart.parts]
    tables.selected.js_on_change(
        "indices", CustomJS(args={"tables": tables, "parts": parts, "place": place}, code=scripts.SELECT)
    )
    for name, root in roots.items():
        root.name = name
        document.add_root(root)
    for script in (*(script for chart in charts for script in (chart.stacked, chart.named)), _theme(charts)):
        document.js_on_event(DocumentReady, script)
    page: str = file_html(
        document,
        resources=Resources(mode="inline", minified=True),
        title=_heading(view),
        template=_template(),
        template_variables={
            "style": styles.PAGE,
            "heading": _heading(view),
            "subtitle": _subtitle(view),
            "facts": view.facts,
            "warning": view.warning,
            "has_costs": view.has_costs,
            "legend": _legend(view, charts),
            "has_moves": moves is not None,
            "moves_heading": _moves_heading(view),
            "notes": (*view.notes, *_explanations(view)),
        },
        suppress_callback_warning=True,
    )
    return page


def _template() -> Template:
    return _ENVIRONMENT.from_string(_PAGE)


def _choice(labels: list[str], active: int = 0) -> RadioButtonGroup:
    return RadioButtonGroup(labels=labels, active=active, stylesheets=[InlineStyleSheet(css=styles.CONTROL)])


def _theme(charts: list[Chart]) -> CustomJS:
    return CustomJS(
        args={
            "axes": [axis for chart in charts for axis in chart.plot.axis],
            "grids": [grid for chart in charts for grid in chart.plot.xgrid],
            "texts": [text for chart in charts for text in chart.totals],
            "spans": [span for chart in charts for span in chart.spans],
        },
        code=scripts.THEME,
    )


def _heading(view: PlanView) -> str:
    devices = view.task.num_devices
    return f"{view.title}: {_count(len(view.task.tables), 'table')} on {_count(devices, 'device')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _subtitle(view: PlanView) -> str:
    if not view.has_costs:
        return "No cost is predicted, so the page shows memory alone."
    overall, slowest = view.side.overall_ms, view.side.slowest
    text = f"{view.side.name}: {overall:.3f} ms {view.costs}"
    text += f", device {slowest} is the slowest" if view.task.num_devices > 1 else ""
    if view.before is not None and view.before.overall_ms is not None and overall is not None:
        saved = 1 - overall / view.before.overall_ms if view.before.overall_ms else 0.0
        gain = f"costs {abs(saved):.1%} {'less' if saved >= 0 else 'more'}"
        text += f"; {view.before.name}: {view.before.overall_ms:.3f} ms, so {view.side.name} {gain}"
    return text


def _moves_heading(view: PlanView) -> str:
    moved = [move for move in view.moves if move.kind == "move"]
    tables = len({move.table for move in moved})
    gib = sum(move.memory_bytes for move in moved) / 2**30
    cut = len({move.table for move in view.moves if move.kind == "cut"} - {move.table for move in moved})
    return f"Moves: {_count(tables, 'table')}, {gib:.3g} GiB" + (f"; {_count(cut, 'table')} re-split" if cut else "")


def _legend(view: PlanView, charts: list[Chart]) -> list[tuple[str, str, str]]:
    """Label, style and class of each sign."""
    signs = []
    if view.has_costs:
        signs += [(name.replace("_", " "), f"background:{colour}", "strip") for name, colour in PHASE_COLOURS.items()]
    if view.before is not None:
        signs.append((f"upper bar: {view.side.name}", f"background:{PALETTE[0]}", ""))
        signs.append((f"lower, pale bar: {view.before.name}", f"background:{paler(PALETTE[0])}", ""))
    if view.moved_to:
        signs.append(("moves", f"background:{PALETTE[0]};border-color:{MOVED_COLOUR}", "moved"))
    if any(number == OTHERS for chart in charts for number in chart.kinds):
        signs.append(("smaller tables together", f"background:{OTHER_COLOUR}", ""))
    if any(number == REST for chart in charts for number in chart.kinds):
        signs.append(("waiting: no table of the device", f"background:{REST_COLOUR}", ""))
    largest = gib(int(view.task.capacity_bytes.max()))
    signs.append((f"room for tables (at most {largest})", f"background:{CAPACITY_COLOUR}", "room"))
    return signs


def _explanations(view: PlanView) -> list[str]:
    said = [
        "Each part of a bar is a table, in the same colour everywhere. Point at it for its figures, zoom with the wheel to "
        "name small ones, choose rows of the list of tables to find them in the bars.",
    ]
    if view.has_costs:
        said += [
            "The thin bars are the four phases of each device; the dashed line is the slowest device, which all others wait "
            f"for. Costs of devices are {view.costs}.",
            "A device runs its tables fused, so its cost is no sum over tables but is divided among them: compute by what "
            "the device would save without each table, scaled to add up; the exchange by the columns that each table "
            "sends; other collectives by what their tables carry. These shares are predicted, never measured.",
        ]
    return said
