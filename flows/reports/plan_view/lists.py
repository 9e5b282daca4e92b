"""Tables and moves as lists to sort and filter."""

from bokeh.models import (
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    DataTable,
    InlineStyleSheet,
    NumberFormatter,
    StringFormatter,
    TableColumn,
    TextInput,
)

from flows.reports.plan_view import scripts
from flows.reports.plan_view.data import MoveLine, PlanView, TableColumns
from flows.reports.plan_view.styles import CONTROL, LIST

_ROW, _HEAD, _TALLEST = 26, 32, 560  # pixels

_WHOLE, _THREE, _FOUR = "0,0", "0,0.000", "0,0.0000"


def table_list(view: PlanView, columns: TableColumns, source: ColumnDataSource) -> tuple[TextInput, DataTable]:
    """All tables, and the entry that filters them by name."""
    shown = [
        _text("name", "table", 220),
        _number("rows", "rows", _WHOLE),
        _number("dim", "dim", _WHOLE, 60),
        _number("pooling", "pooling factor", "0,0.[00]"),
        _number("lookups", "lookups in a batch", _WHOLE, 120),
        _text("way", "way to shard", 170),
        _text("where", "devices", 110),
        _number("gib", "memory, GiB", _FOUR),
    ]
    if "ms" in columns.columns:
        shown.append(_number("ms", "share of cost, ms", _THREE, 130))
    if "before" in columns.columns:
        shown.append(_text("before", f"devices, {view.before.name}" if view.before else "devices before", 130))
    return _list(shown, source, "name", "filter tables by name")


def move_list(view: PlanView) -> tuple[TextInput, DataTable] | None:
    """What moves, is re-split or loaded; None where nothing is."""
    if not view.moves:
        return None
    source = ColumnDataSource(
        {
            "step": list(range(1, len(view.moves) + 1)),
            "kind": [move.kind for move in view.moves],
            "table": [move.table for move in view.moves],
            "part": [_part(view, move) for move in view.moves],
            "source": [move.source for move in view.moves],
            "target": [move.target for move in view.moves],
            "mib": [move.memory_bytes / 2**20 for move in view.moves],
            "stay": [float("nan") if move.stay_ms is None else move.stay_ms for move in view.moves],
        }
    )
    shown = [
        _number("step", "step", _WHOLE, 50),
        _text("kind", "what", 60),
        _text("table", "table", 220),
        _text("part", "part", 200),
        _text("source", "from", 80),
        _text("target", "to", 80),
        _number("mib", "MiB", "0,0.00"),
        _number("stay", "a step's ms more if the table stayed", _THREE, 220),
    ]
    return _list(shown, source, "table", "filter moves by table")


def _part(view: PlanView, move: MoveLine) -> str:
    """Rows or columns that move; of a table that is re-split also how it was sharded, and is now."""
    part = move.part or "all"
    if move.kind != "cut" or view.before is None or move.table not in view.before.sharding_of:
        return part
    before, after = view.before.way(move.table), view.side.way(move.table)
    return part if before == after else f"{part}: {before} -> {after}"


def _list(shown: list[TableColumn], source: ColumnDataSource, column: str, says: str) -> tuple[TextInput, DataTable]:
    entry = TextInput(placeholder=says, width=320, stylesheets=[InlineStyleSheet(css=CONTROL)])
    kept = CustomJSFilter(args={"entry": entry, "column": column}, code=scripts.FILTER)
    entry.js_on_change("value_input", CustomJS(args={"source": source}, code="source.change.emit()"))
    count = len(next(iter(source.data.values())))
    table = DataTable(
        source=source,
        view=CDSView(filter=kept),
        columns=shown,
        index_position=None,
        row_height=_ROW,
        height=min(_TALLEST, _HEAD + _ROW * count + 18),
        sizing_mode="stretch_width",
        autosize_mode="force_fit",
        reorderable=False,
        stylesheets=[InlineStyleSheet(css=LIST)],
    )
    return entry, table


def _text(field: str, title: str, width: int) -> TableColumn:
    return TableColumn(field=field, title=title, width=width, formatter=StringFormatter())


def _number(field: str, title: str, form: str, width: int = 100) -> TableColumn:
    formatter = NumberFormatter(format=form, text_align="right", nan_format="-")
    return TableColumn(field=field, title=title, width=width, formatter=formatter, default_sort="descending")
