"""`dreamshard sql` and `prune`: query the home, and free disk space in it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from duckdb import DuckDBPyRelation

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter, with_options
from flows.forms.options import PruneOptions
from storage.lake import catalog

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
    """Ask DuckDB over everything that was measured and registered."""
    store = enter(home, existing=True, reads_only=True)
    with catalog.answering(store.settings, query, memory_gb) as answer:
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


@with_options
def prune(options: PruneOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Remove old lookups, cost samples, checkpoints, reports and leftovers of killed runs; a dry run without --delete.

    Never what a registered version names (its training, evaluation and tables), what is in use, or the tables ingested
    last. `dreamshard ingest` makes removed lookups again.
    """
    store = enter(home, existing=True)
    from storage import retention  # it reads MLflow's registry, and `sql` need not wait for that

    days = options.older_than_days
    table = retention.prune(store, older_than_days=days, delete=options.delete)
    if as_json:
        terminal.print_json({"older_than_days": days, "deleted": options.delete, "table": table})
        return
    done = "removed" if options.delete else "would be removed"
    terminal.print_table(table, title=f"Older than {days} days and needed by no version: {done}")
    if not options.delete and table[-1]["files"]:
        terminal.say(
            f"Nothing was removed. To remove it:\n  {terminal.typed(f'prune --older-than-days {days} --delete')}"
        )
