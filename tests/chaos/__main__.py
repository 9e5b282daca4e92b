"""Run long trials, print a Markdown table of what was survived, and fail where anything was not.

    python -m tests.chaos [names...] [--short | --scale 0.1] [--seed 1] [--jobs 4] [--write docs/survived.md]

A name is a module of this package; without names all run. `--short` runs a share of the attempts, of each trial its own,
that takes a quarter of an hour on two idle cores; `--scale` the same share of all. The seed is printed, and the same seed
tries the same again. Trials that only compute run beside one of the others, or beside several with four cores and more.
`--write` replaces the rows of these trials in the file and keeps those of others. The last line names what was not tried.
"""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flows.runtime.source_revision import source_revision
from tests.chaos.survived import Survived
from tests.chaos.trials import SHORT, all_tried, names
from tests.helpers.marked_tables import write

MARKER = "<!-- survived -->"
_HEADER = ("| what | tried | survived | |", "|---|---:|---:|---|")
_JOBS = max(1, len(os.sched_getaffinity(0)) // 2)  # most trials keep more than one core busy


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
    share = parser.add_mutually_exclusive_group()
    share.add_argument(
        "--short", action="store_true", help="as many attempts as take a quarter of an hour on two cores"
    )
    share.add_argument("--scale", type=float, default=1.0, help="share of the attempts (default: all)")
    parser.add_argument("--seed", type=int, default=None, help="default: one that is drawn and printed")
    parser.add_argument(
        "--jobs",
        type=int,
        default=_JOBS,
        help=f"trials at once, beside those that only compute (default here: {_JOBS})",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="Markdown file whose tables to replace")
    given = parser.parse_args(arguments)
    if not given.scale > 0:
        parser.error(f"--scale {given.scale} would try nothing; give a share above 0")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs} would try nothing; give 1 or more")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    wanted, well = given.names or names(), True
    untried: list[str] = []
    print(f"{', '.join(wanted)} (seed {seed})\n", flush=True)
    scales = {name: SHORT[name] if given.short else given.scale for name in wanted}
    for name, rows, spent in all_tried(scales, seed, given.jobs):
        lines = [
            *(f"## {name}", ""),
            *table(rows),
            "",
            f"Tried {time.strftime('%Y-%m-%d')} at {source_revision()[:8]} with seed {seed} in {spent:.0f} s.",
        ]
        print("\n".join(lines), end="\n\n", flush=True)
        if given.write is not None:
            write(given.write, MARKER, "##", {name: lines})
        untried += [f"{name} ({row.note})" for row in rows if not row.tried]
        well = well and all(row.survived == row.tried for row in rows)
    if untried:
        print(f"NOT everything was tried: {'; '.join(untried)}", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
