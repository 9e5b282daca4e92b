"""What the command shows: progress bars on stderr, tables and JSON on stdout, one sentence where something is wrong."""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_UNBOUNDED = 10_000  # columns
OUT = Console() if sys.stdout.isatty() else Console(width=140)
ERR = Console(stderr=True)


@contextmanager
def progress_bars(*, quiet: bool, numbered: bool = True) -> Iterator[None]:
    """Show a bar per stage, with what is left of it, while the block runs; lines where there is no terminal.

    Args:
        quiet: show nothing.
        numbered: say which of the chain's stages each line is.
    """
    from flows.runtime.progress import STAGES, listening

    if quiet:
        yield
        return
    bars = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=ERR,
    )
    rows: dict[str, TaskID] = {}
    on_terminal = ERR.is_terminal

    def show(stage: str, done: int, total: int, note: str) -> None:
        if not on_terminal:
            if done == total and stage in STAGES:
                ERR.print(
                    f"{_position(stage, STAGES) if numbered else ''}{stage}: {total} of {total} {note}".rstrip(),
                    highlight=False,
                    markup=False,
                )
            return
        if stage not in rows:
            rows[stage] = bars.add_task(stage, total=total, note="")
        bars.update(rows[stage], completed=done, total=total, note=note, refresh=True)

    with listening(show):
        if not on_terminal:
            yield
            return
        with bars:
            yield


def _position(stage: str, stages: Mapping[str, int]) -> str:
    return f"[{list(stages).index(stage) + 1}/{len(stages)}] "


def typed(command: str) -> str:
    """`dreamshard COMMAND` as it works when typed in this folder: with the program's path and the home if need be."""
    program, home = Path(sys.argv[0]), os.environ.get("DREAMSHARD_HOME", "")
    known = program.name != "dreamshard" or shutil.which("dreamshard") == str(program.absolute())
    elsewhere = home and Path(home) != Path(".dreamshard").absolute()
    return f"{'dreamshard' if known else os.path.relpath(program)} {command}{f' --home {home}' if elsewhere else ''}"


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> None:
    """A table of `rows`, numbers to the right; one block per row where the terminal is too narrow for the table."""
    if not rows:
        OUT.print(f"{title}: none" if title else "no rows")
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    names = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    for name in names:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shown(row.get(name)) for name in names))
    if Console(width=_UNBOUNDED).measure(table).maximum <= OUT.width or not OUT.is_terminal:
        OUT.print(table)
        return
    if title:
        OUT.print(title, style="bold")
    width = max(len(name) for name in names)
    for row in rows:
        OUT.print()
        for name in names:
            OUT.print(f"{name:<{width}}  {shown(row.get(name))}", highlight=False, markup=False)


def shown(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def say(line: str) -> None:
    """A line on stdout as it is, however long."""
    OUT.print(line, highlight=False, markup=False, soft_wrap=True)


def note(line: str) -> None:
    """A line on stderr as it is, however long."""
    ERR.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """`content` as standard JSON on stdout: what is not finite becomes null."""
    sys.stdout.write(json.dumps(_finite(content), indent=2, default=str) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {str(name): _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def fail(sentence: str) -> None:
    """One sentence on stderr."""
    ERR.print(f"dreamshard: {' '.join(sentence.split())}", style="red", highlight=False, markup=False, soft_wrap=True)
