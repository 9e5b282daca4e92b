"""Output of the command: notes and errors on stderr, tables and JSON on stdout."""

import json
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDEST_IN_PIPE = 200
_NARROWEST = 15  # characters of a column that is folded, with its border
_LONGEST = 1000  # characters of a value
debug = False
"""Whether the command line has `--debug`; `app.launch` sets it."""
OUT = Console() if sys.stdout.isatty() else Console(width=_WIDEST_IN_PIPE)
ERR = Console(stderr=True)


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
    for row in rows:
        say("")
        show_fields({name: row.get(name) for name in names})


def show_fields(fields: Mapping[str, Any]) -> None:
    """One line per field."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        say(f"{name:<{width}}  {shown(value)}")


def shown(value: Any) -> str:
    """Format a value for people; a text too long to be read is cut."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"  # four digits would leave out units
    text = ", ".join(map(shown, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def say(line: str) -> None:
    """Print a line on stdout unchanged and unwrapped."""
    OUT.print(line, highlight=False, markup=False, soft_wrap=True)


def note(line: str, style: str | None = None) -> None:
    """Print a line on stderr unchanged and unwrapped."""
    ERR.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr, on one line."""
    note(f"warning: {' '.join(sentence.split())}", "yellow")


def print_json(content: Any) -> None:
    """Print `content` as standard JSON on stdout; infinite numbers and NaN become null."""
    finite = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    sys.stdout.write(json.dumps(finite, indent=2) + "\n")
