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
    csv: Annotated[str | None, typer.Option("--csv", help="Write CSV to this file instead; - for stdout.")] = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", help="Write Parquet to this file instead; - for stdout.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered.

    An answer too wide for the terminal is folded, or printed as one block per row where columns would be too narrow to read.
    """
    from dreamshard.files import outputs
    from storage import load

    for option, name in (("--csv", csv), ("--parquet", parquet)):
        if name == "":
            raise ValueError(
                f"{option} is given no name, so nothing says where the answer goes; give a file, or - for stdout"
            )
        if name is not None and name != "-":
            outputs.check(Path(name), "answer", option)
    if csv == parquet == "-":
        raise ValueError(
            "--csv and --parquet both write to stdout, where their answers would mix; give one of them a file"
        )
    store = enter(home, existing=True)
    with load.answering(store.settings, query) as answer:
        if csv is not None:
            _write(answer, csv, lambda rows, path: rows.write_csv(path, header=True))
        if parquet is not None:
            _write(answer, parquet, lambda rows, path: rows.write_parquet(path, compression="zstd"))
        if csv is None and parquet is None:
            named = [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]
            terminal.print_json(named) if as_json else terminal.print_table(named)


def _write(answer: "DuckDBPyRelation", target: str, write: Callable[["DuckDBPyRelation", str], None]) -> None:
    """Write the answer to a scratch file, and from there to whatever `target` is: a file, a pipe or a device."""
    from dreamshard.files import outputs

    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "answer"
        write(answer, str(written))
        if target == "-":
            sys.stdout.buffer.write(written.read_bytes())
            sys.stdout.buffer.flush()
            return
        with written.open("rb") as source, outputs.writing(Path(target)) as file:
            shutil.copyfileobj(source, file)
    terminal.note(f"wrote {target}")
