"""`dreamshard sql`: one query over the views, printed, or written as a file."""

import json
import os
import shutil
import sys
import textwrap
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import terminal
from flows.cli.command_options import HomeOption, JsonOption, enter

if TYPE_CHECKING:
    from storage.lake.catalog import Answer


_LONGEST_CELL = 1000  # characters of a printed table


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
    rows: Annotated[
        int, typer.Option(min=1, max=10**9, help="Rows to print, also with --json; --csv and --parquet give all.")
    ] = 1000,
    memory_gb: Annotated[
        float,
        typer.Option(
            "--memory-gb", min=0.1, max=1e6, help="GiB of memory that the query may use, and four times that of disk."
        ),
    ] = 2.0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Longest time to the end of the answer; then it is stopped.")
    ] = 600.0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything that was measured and registered. A query reads the lake and no other file.

    An answer too wide for the terminal is folded, or printed as one block per row where columns would be too narrow to read.
    """
    from dreamshard.files import outputs
    from storage import load
    from storage.lake import confined

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
    store = enter(home, existing=True, reads_only=True)
    with (
        confined.bounded_process(memory_gb),
        load.answering(store.settings, query, memory_gb, seconds, _give_up) as answer,
    ):
        if csv is not None:
            written = answer.scratch / "answer.csv"
            answer.rows.write_csv(str(written), header=True)
            answer.check()
            _copy(written, csv)
        if parquet is not None:
            written = answer.scratch / "answer.parquet"
            answer.rows.write_parquet(str(written), compression="zstd")
            answer.check()
            _copy(written, parquet)
        if csv is None and parquet is None:
            _print_json(answer, rows) if as_json else _print(answer, rows)


def _give_up(problem: str) -> None:
    """End this process at once, since DuckDB does not end the query; the next query removes its folder."""
    terminal.fail(f"{problem} (DuckDB did not stop when it was told to, so the whole command was ended)")
    os._exit(1)


def _print(answer: "Answer", most: int) -> None:
    shown = list(islice(answer.iter_rows(), most + 1))
    cells = [{name: _cut(value) for name, value in row.items()} for row in shown[:most]]
    terminal.print_table(cells)
    if len(shown) > most:
        _note_left_out(answer, most)
    if any(value is not row[name] for row, cut in zip(shown, cells, strict=False) for name, value in cut.items()):
        terminal.note(
            f"texts of more than {_LONGEST_CELL:,} characters are cut; --json, --csv and --parquet give all of them"
        )


def _cut(value: object) -> object:
    """The value, or the beginning of its text where that is too long to be read."""
    text = terminal.shown(value)
    return value if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}... ({len(text):,} characters)"


def _print_json(answer: "Answer", most: int) -> None:
    """Print what `terminal.print_json` prints of a list, row by row."""
    separator = "[\n"
    rows = answer.iter_rows()
    for row in islice(rows, most):
        finite = json.loads(json.dumps(row, default=str), parse_constant=lambda _: None)
        sys.stdout.write(separator + textwrap.indent(json.dumps(finite, indent=2), "  "))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")
    if next(rows, None) is not None:
        _note_left_out(answer, most)


def _note_left_out(answer: "Answer", most: int) -> None:
    ((number,),) = answer.rows.aggregate("count(*)").fetchall()
    terminal.note(
        f"{number - most} more rows are not printed, of {number}; --rows prints more, and --csv FILE and --parquet FILE give "
        "all"
    )


def _copy(written: Path, target: str) -> None:
    """Copy a file to whatever `target` is: a file, a pipe or a device."""
    from dreamshard.files import outputs

    if target == "-":
        with written.open("rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    outputs.write(Path(target), written.read_bytes())
    written.unlink()
    terminal.note(f"wrote {target}")
