"""Run long trials, print a Markdown table of what was survived, and fail where anything was not.

    python -m tests.chaos [names...] [--scale 0.1] [--seed 1] [--write docs/survived.md]

A name is a module of this package; without names all run. `--scale` shrinks the number of attempts. The seed is printed, and
the same seed tries the same again. `--write` replaces the rows of these trials in the file and keeps those of others.
"""

import argparse
import importlib
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from flows.runtime.source_revision import source_revision
from tests.chaos.survived import Survived
from tests.helpers.marked_tables import write

MARKER = "<!-- survived -->"
_HEADER = ("| what | tried | survived | |", "|---|---:|---:|---|")
_NO_TRIALS = ("__init__", "__main__", "survived")
Trial = Callable[[float, int], list[Survived]]


def names() -> list[str]:
    """The names of all trials, alphabetically."""
    stems = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(stem for stem in stems if stem not in _NO_TRIALS and not stem.startswith("test_"))


def trial(name: str) -> Trial:
    """The `run` of one trial."""
    found: Trial = importlib.import_module(f"tests.chaos.{name}").run
    return found


def tried(name: str, scale: float, seed: int, load: Callable[[str], Trial] = trial) -> list[Survived]:
    """What a trial found; an error of its own becomes a row that was not survived."""
    try:
        return load(name)(scale, seed)
    except Exception as error:  # noqa: BLE001 - one broken trial must not hide the others; it is a row
        traceback.print_exc(file=sys.stderr)
        return [Survived(what=f"{name} itself", tried=1, survived=0, note=f"{type(error).__name__}: {error}")]


def table(rows: Sequence[Survived]) -> list[str]:
    """The rows as a Markdown table."""
    lines = [f"| {row.what} | {row.tried:,} | {row.survived:,} | {_cell(row.note)} |" for row in rows]
    return [*_HEADER, *lines]


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are named; returns 1 if anything was not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="name", help=", ".join(names()))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attempts (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="default: one that is drawn and printed")
    parser.add_argument("--write", type=Path, metavar="FILE", help="Markdown file whose tables to replace")
    given = parser.parse_args(arguments)
    if not given.scale > 0:
        parser.error(f"--scale {given.scale} would try nothing; give a share above 0")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    well = True
    for name in given.names or names():
        began = time.perf_counter()
        print(f"## {name} (seed {seed})\n", flush=True)
        rows = tried(name, given.scale, seed)
        spent = time.perf_counter() - began
        lines = [
            *(f"## {name}", ""),
            *table(rows),
            "",
            f"Tried {time.strftime('%Y-%m-%d')} at {source_revision()[:8]} with seed {seed} in {spent:.0f} s.",
        ]
        print("\n".join(lines[2:]), end="\n\n", flush=True)
        if given.write is not None:
            write(given.write, MARKER, "##", {name: lines})
        well = well and all(row.survived == row.tried for row in rows)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
