"""Output of the command: progress bars and errors on stderr, tables and JSON on stdout."""

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from decimal import Decimal
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
from rich.text import Text

_LINE_EVERY_S = 60.0
_WIDEST_IN_PIPE = 200
_NARROWEST = 15  # characters of a column that is folded, with its border
_FOUR_DIGITS = 10_000.0  # from here on, four digits would leave out units
debug = False
"""Whether the command line has `--debug`; `app.main` sets it."""
OUT = Console() if sys.stdout.isatty() else Console(width=_WIDEST_IN_PIPE)
ERR = Console(stderr=True)


@contextmanager
def progress_bars(*, quiet: bool, numbered: bool = True) -> Iterator[None]:
    """Show a progress bar per stage while the block runs; without a terminal, a line per finished stage and per minute.

    Args:
        quiet: show nothing.
        numbered: start each line with the stage's position in the chain.
    """
    from flows.runtime.progress import ANNOUNCEMENT, STAGES, listening  # of Prefect's flows; other commands have none

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
    on_terminal, printed_at = ERR.is_terminal, time.monotonic()

    def show(stage: str, done: int, total: int, text: str) -> None:
        nonlocal printed_at
        if stage == ANNOUNCEMENT:
            bars.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif on_terminal:
            if stage not in rows:
                rows[stage] = bars.add_task(stage, total=total, note="")
            bars.update(rows[stage], completed=done, total=total, note=text, refresh=True)
        elif stage in STAGES and (done == total or time.monotonic() >= printed_at + _LINE_EVERY_S):
            position = f"[{list(STAGES).index(stage) + 1}/{len(STAGES)}] " if numbered else ""
            printed_at = time.monotonic()
            note(f"{position}{stage}: {done} of {total} {text}".rstrip())

    with listening(show), bars if on_terminal else nullcontext():
        yield


def typed(command: str) -> str:
    """`dreamshard COMMAND` as one types it, with the home if it is not the default one."""
    home = os.environ.get("DREAMSHARD_HOME", "")
    is_default = not home or Path(home) == Path(".dreamshard").absolute()
    return f"dreamshard {command}{'' if is_default else f' --home {shlex.quote(home)}'}"


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> None:
    """Print a table, numbers aligned right; if its columns would be too narrow to read, one block per row."""
    if not rows:
        OUT.print(f"{title}: none" if title else "no rows")
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    names = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | Decimal | None) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(row.get(name))) for name in names))
    fits = Console(width=10_000).measure(table).maximum <= OUT.width
    if fits or (OUT.is_terminal and OUT.width >= _NARROWEST * len(names)):
        OUT.print(table)
        return
    if title:
        OUT.print(title, style="bold")
    width = max(len(name) for name in names)
    for row in rows:
        say("")
        for name in names:
            say(f"{name:<{width}}  {shown(row.get(name))}")


def show_fields(fields: Mapping[str, Any]) -> None:
    """One line per field."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        say(f"  {name.replace('_', ' '):<{width}}  {shown(value)}")


def shown(value: Any) -> str:
    """Format a value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < _FOUR_DIGITS else f"{value:.0f}"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return str(value)


def say(line: str) -> None:
    """Print a line on stdout unchanged and unwrapped."""
    OUT.print(line, highlight=False, markup=False, soft_wrap=True)


def note(line: str, style: str | None = None) -> None:
    """Print a line on stderr unchanged and unwrapped."""
    ERR.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr, on one line."""
    note(f"warning: {' '.join(sentence.split())}", "yellow")


def fail(sentence: str) -> None:
    """Print an error on stderr, on one line."""
    note(f"dreamshard: {' '.join(sentence.split())}", "red")


def print_json(content: Any) -> None:
    """Print `content` as standard JSON on stdout; infinite numbers and NaN become null."""
    finite = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    sys.stdout.write(json.dumps(finite, indent=2) + "\n")
