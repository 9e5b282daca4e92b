"""`dreamshard sql`: one query over the views, printed, or written as a file."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


def sql(
    query: Annotated[
        str,
        typer.Argument(
            help="Over versions, tables, table_costs, tasks, cost_samples, device_costs, placements, evaluations, "
            "evaluated_devices, shard_costs, exchange_samples; `describe VIEW` lists the columns of one."
        ),
    ],
    csv: Annotated[Path | None, typer.Option("--csv", help="Write CSV to this file instead; - for stdout.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write Parquet to this file instead.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered.

    An answer too wide for the terminal is printed as one block per row.
    """
    store = enter(home, existing=True)
    from dreamshard.files import outputs
    from storage import load

    for option, target in (("--csv", csv), ("--parquet", parquet)):
        if target is not None and str(target) != "-":
            outputs.check(target, "answer", option)
    with load.answering(store.settings, query) as answer:
        if csv is not None:
            _write(answer, csv, lambda rows, path: rows.write_csv(path, header=True))
        if parquet is not None:
            _write(answer, parquet, lambda rows, path: rows.write_parquet(path, compression="zstd"))
        if csv is None and parquet is None:
            named = [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]
            terminal.print_json(named) if as_json else terminal.print_table(named)


def _write(answer: "DuckDBPyRelation", target: Path, write: Callable[["DuckDBPyRelation", str], None]) -> None:
    """Write the answer to a scratch file, and from there to whatever `target` is: a file, a pipe or a device."""
    from dreamshard.files import outputs

    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "answer"
        write(answer, str(written))
        if str(target) == "-":
            sys.stdout.write(written.read_text(encoding="utf-8"))
            return
        with written.open("rb") as source, outputs.writing(target) as file:
            shutil.copyfileobj(source, file)
    terminal.note(f"wrote {target}")
