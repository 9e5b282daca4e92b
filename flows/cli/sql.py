"""`dreamshard sql`: queries over the home."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators
from duckdb import DuckDBPyRelation

from flows.cli import terminal
from flows.cli.command import Json, command, open_home
from storage.lake import catalog

_LONGEST_CELL = 1000  # characters of a printed table


@command
def sql(
    query: str,
    /,
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    rows: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1000,
    as_json: Json = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered.

    Args:
        query: Over versions, tables, table_costs, tasks, cost_samples, device_costs, placements, evaluations,
            evaluated_devices, exchange_samples; `describe VIEW` lists the columns of one.
        csv: Write CSV to this file instead.
        parquet: Write Parquet to this file instead.
        rows: Rows to print, also with --json; --csv and --parquet give all.
    """
    store = open_home(existing=True, reads_only=True)
    with catalog.answering(store.settings, query) as answer:
        if csv is not None:
            answer.write_csv(str(csv), header=True)
            terminal.note(f"wrote {csv}")
        if parquet is not None:
            answer.write_parquet(str(parquet), compression="zstd")
            terminal.note(f"wrote {parquet}")
        if csv is None and parquet is None:
            _print(answer, rows, as_json=as_json)


def _print(answer: DuckDBPyRelation, most: int, *, as_json: bool) -> None:
    found = [dict(zip(answer.columns, row, strict=True)) for row in answer.limit(most + 1).fetchall()]
    if as_json:
        terminal.print_json(found[:most])
    else:
        terminal.print_table([{name: _cut(value) for name, value in row.items()} for row in found[:most]])
    if len(found) > most:
        terminal.note(f"more than {most} rows; --rows prints more, and --csv FILE and --parquet FILE give all")


def _cut(value: Any) -> Any:
    """The value, or the beginning of its text if that is too long to be read."""
    text = terminal.shown(value)
    return value if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}... ({len(text):,} characters)"
