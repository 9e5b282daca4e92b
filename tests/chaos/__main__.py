"""Run long trials, print a Markdown table of what was survived, and fail where anything was not.

    python -m tests.chaos [names...] [--scale 0.1] [--seed 1] [--jobs 4] [--write docs/survived.md]

A name is a module of this package; without names all run. `--scale` shrinks the number of attempts. The seed is printed, and
the same seed tries the same again. With four cores and more, several trials run at once. `--write` replaces the rows of these
trials in the file and keeps those of others.
"""

import argparse
import importlib
import multiprocessing
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from flows.runtime.source_revision import source_revision
from tests.chaos.survived import Survived
from tests.helpers.marked_tables import write

MARKER = "<!-- survived -->"
_HEADER = ("| what | tried | survived | |", "|---|---:|---:|---|")
_JOBS = max(1, len(os.sched_getaffinity(0)) // 2)  # most trials keep more than one core busy
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


def _timed(name: str, scale: float, seed: int) -> tuple[str, list[Survived], float]:
    """The name of a trial, what it found, and its seconds."""
    began = time.perf_counter()
    rows = tried(name, scale, seed)
    return name, rows, time.perf_counter() - began


def _all(wanted: Sequence[str], scale: float, seed: int, jobs: int) -> Iterator[tuple[str, list[Survived], float]]:
    """Each trial as it ends; with several at once each has a process of its own."""
    if jobs == 1:
        for name in wanted:
            yield _timed(name, scale, seed)
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawned, max_tasks_per_child=1) as pool:
        running = [pool.submit(_timed, name, scale, seed) for name in wanted]
        for ended in as_completed(running):
            yield ended.result()


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
    parser.add_argument("--jobs", type=int, default=_JOBS, help=f"trials at once (default here: {_JOBS})")
    parser.add_argument("--write", type=Path, metavar="FILE", help="Markdown file whose tables to replace")
    given = parser.parse_args(arguments)
    if not given.scale > 0:
        parser.error(f"--scale {given.scale} would try nothing; give a share above 0")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs} would try nothing; give 1 or more")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    wanted, well = given.names or names(), True
    print(f"{', '.join(wanted)} (seed {seed})\n", flush=True)
    for name, rows, spent in _all(wanted, given.scale, seed, given.jobs):
        lines = [
            *(f"## {name}", ""),
            *table(rows),
            "",
            f"Tried {time.strftime('%Y-%m-%d')} at {source_revision()[:8]} with seed {seed} in {spent:.0f} s.",
        ]
        print("\n".join(lines), end="\n\n", flush=True)
        if given.write is not None:
            write(given.write, MARKER, "##", {name: lines})
        well = well and all(row.survived == row.tried for row in rows)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
