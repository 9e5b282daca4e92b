"""`dreamshard sql`: queries over the home."""

from pathlib import Path

from flows.cli import terminal
from flows.cli.command import Json, Positive, command, open_home
from storage.lake import catalog


@command
def sql(
    query: str,
    /,
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    rows: Positive = 1000,
    as_json: Json = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered.

    Args:
        query: Over versions, tables, table_costs, tasks, cost_samples, rounds, device_costs, placements, evaluations,
            evaluated_devices, exchange_samples; `describe VIEW` lists the columns of one.
        csv: Write CSV to this file instead.
        parquet: Write Parquet to this file instead.
        rows: Rows to print, also with --json; --csv and --parquet give all.
    """
    store = open_home(existing=True, reads_only=True)
    with catalog.answering(store, query) as answer:
        if csv is not None:
            answer.write_csv(str(csv), header=True)
            terminal.note(f"wrote {csv}")
        if parquet is not None:
            answer.write_parquet(str(parquet), compression="zstd")
            terminal.note(f"wrote {parquet}")
        if csv is None and parquet is None:
            found = [dict(zip(answer.columns, row, strict=True)) for row in answer.limit(rows + 1).fetchall()]
            (terminal.print_json if as_json else terminal.print_table)(found[:rows])
            if len(found) > rows:
                terminal.note(f"more than {rows} rows; --rows prints more, and --csv FILE and --parquet FILE give all")
