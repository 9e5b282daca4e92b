"""`dreamshard sql`: one query over the views, printed, or written as a file."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_LONGEST_CELL = 1000  # characters of a printed table


def sql(
    query: Annotated[
        str,
        typer.Argument(
            help="Over versions, tables, table_costs, tasks, cost_samples, device_costs, placements, evaluations, "
            "evaluated_devices, shard_costs, exchange_samples; `describe VIEW` lists the columns of one."
        ),
    ],
    csv: Annotated[Path | None, typer.Option("--csv", help="Write CSV to this file instead.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write Parquet to this file instead.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=10**9, help="Rows to print, also with --json; --csv and --parquet give all.")
    ] = 1000,
    memory_gb: Annotated[
        float, typer.Option("--memory-gb", min=0.1, max=1e6, help="GiB of memory that the query may use.")
    ] = 2.0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered.

    An answer too wide for the terminal is folded, or printed as one block per row if columns would be too narrow to read.
    """
    store = enter(home, existing=True, reads_only=True)
    from storage.lake import catalog

    with catalog.answering(store.settings, query, memory_gb) as answer:
        if csv is not None:
            answer.write_csv(str(csv), header=True)
            terminal.note(f"wrote {csv}")
        if parquet is not None:
            answer.write_parquet(str(parquet), compression="zstd")
            terminal.note(f"wrote {parquet}")
        if csv is None and parquet is None:
            _print(answer, rows, as_json=as_json)


def _print(answer: "DuckDBPyRelation", most: int, *, as_json: bool) -> None:
    found = [dict(zip(answer.columns, row, strict=True)) for row in answer.limit(most + 1).fetchall()]
    if as_json:
        sys.stdout.write(json.dumps(_finite(found[:most]), indent=2) + "\n")
    else:
        terminal.print_table([{name: _cut(value) for name, value in row.items()} for row in found[:most]])
    if len(found) > most:
        terminal.note(f"more than {most} rows; --rows prints more, and --csv FILE and --parquet FILE give all")


def _finite(rows: list[dict[str, Any]]) -> Any:
    """The rows as JSON holds them: null instead of NaN and infinity, text for dates and the like."""
    return json.loads(json.dumps(rows, default=str), parse_constant=lambda _: None)


def _cut(value: object) -> object:
    """The value, or the beginning of its text if that is too long to be read."""
    text = terminal.shown(value)
    return value if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}... ({len(text):,} characters)"
