"""Output of the command: progress bars and errors on stderr, tables and JSON on stdout."""

import json
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
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
_UNBOUNDED = 10_000  # columns
_WIDEST_IN_PIPE = 200
_NARROWEST = 12  # characters of a folded column
_FOUR_DIGITS = 10_000.0  # from here on, four digits would leave out units
OUT = Console() if sys.stdout.isatty() else Console(width=_WIDEST_IN_PIPE)
ERR = Console(stderr=True)


@contextmanager
def progress_bars(*, quiet: bool, numbered: bool = True) -> Iterator[None]:
    """Show a progress bar per stage while the block runs; without a terminal, a line per finished stage and per minute.

    Args:
        quiet: show nothing.
        numbered: start each line with the stage's position in the chain.
    """
    from flows.runtime.progress import ANNOUNCEMENT, STAGES, listening

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
            line = f"{position}{stage}: {done} of {total} {text}".rstrip()
            printed_at = time.monotonic()
            ERR.print(line, highlight=False, markup=False, soft_wrap=True)

    with listening(show), bars if on_terminal else nullcontext():
        yield


def run_flow(flow: Callable[..., dict[str, Any]], options: object, *, quiet: bool, **progress: bool) -> dict[str, Any]:
    """Run a deployed flow with its options in this process, with progress bars, and return its outcome.

    The flow must be imported before, since MLflow and Prefect set up their logging on import.
    """
    for name in ("alembic", "mlflow", "httpx"):  # Prefect is quiet already
        logging.getLogger(name).setLevel(logging.ERROR)
    from prefect.client.orchestration import get_client

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of the server too: it must outlive a Ctrl-C
    with ERR.status("waiting for Prefect's server"):
        get_client(sync_client=True)  # starts the temporary server, if no other is configured
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        with progress_bars(quiet=quiet, **progress):
            return flow(**vars(options))
    except KeyboardInterrupt:
        note("interrupted; finished work is kept, and the same command continues from it")
        raise typer.Exit(130) from None


def typed(command: str) -> str:
    """`dreamshard COMMAND` as one types it in this folder: with the program's path and the home where needed."""
    program, home = Path(sys.argv[0]), os.environ.get("DREAMSHARD_HOME", "")
    is_on_path = program.name != "dreamshard" or shutil.which("dreamshard") == str(program.absolute())
    is_default_home = not home or Path(home) == Path(".dreamshard").absolute()
    name = "dreamshard" if is_on_path else os.path.relpath(program)
    return f"{name} {command}{'' if is_default_home else f' --home {shlex.quote(home)}'}"


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> None:
    """Print a table, numbers aligned right.

    In a terminal that is too narrow its longest columns are folded; where they would be narrower than 12 characters, and in
    a pipe above 200, one block per row is printed.
    """
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
    needed = Console(width=_UNBOUNDED).measure(table).maximum
    if needed <= OUT.width:
        OUT.print(table, soft_wrap=True)
        return
    widest = _widest_column([_width([name, *(shown(row.get(name)) for row in rows)]) for name in names], OUT.width)
    if widest is not None and OUT.is_terminal:
        for column in table.columns:
            column.max_width = widest
        OUT.print(table)
        return
    if title:
        OUT.print(title, style="bold")
    width = max(len(name) for name in names)
    for row in rows:
        OUT.print()
        for name in names:
            OUT.print(f"{name:<{width}}  {shown(row.get(name))}", highlight=False, markup=False, soft_wrap=True)


def _width(texts: list[str]) -> int:
    """Of a column, in characters."""
    return max(cell_len(line) for text in texts for line in text.splitlines() or [""])


def _widest_column(widths: Sequence[int], room: int) -> int | None:
    """How wide columns may be so that all fit into `room` with their borders; None if they would be too narrow to read."""
    room -= 3 * len(widths) + 1
    fitting = (most for most in range(_NARROWEST, room + 1) if sum(min(width, most) for width in widths) <= room)
    return max(fitting, default=None)


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


def note(line: str) -> None:
    """Print a line on stderr unchanged and unwrapped."""
    ERR.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """Print `content` as standard JSON on stdout; infinite numbers and NaN become null."""
    finite = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    sys.stdout.write(json.dumps(finite, indent=2) + "\n")


def warn(sentence: str) -> None:
    """Print a warning on stderr, on one line."""
    ERR.print(f"warning: {' '.join(sentence.split())}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def fail(sentence: str) -> None:
    """Print an error on stderr, on one line."""
    ERR.print(f"dreamshard: {' '.join(sentence.split())}", style="red", highlight=False, markup=False, soft_wrap=True)
