"""Run benchmarks: print a Markdown table of each, row by row, and write its figures to `data/figures/NAME.csv`.

    python -m tests.benchmarks [names...] [--quick]

A name is a file name without `bench_`, such as `placing` or `quality`; without names all benchmarks run, except
`as_published`, `profiles` and `real_gpu`, which need files that this project does not contain.
`--quick` writes to `.benchmarks` instead. An error in a benchmark ends the command.
"""

import argparse
import csv
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import torch

from flows.runtime.environment import source_revision

DATA, QUICK = Path(__file__).parent / "data" / "figures", Path(__file__).parents[2] / ".benchmarks"
ONLY_BY_NAME = ("as_published", "profiles", "real_gpu")
COLUMNS = ("what", "measured", "unit", "bar", "reference", "ratio")
KEYS = ("name", "value", *COLUMNS[2:])  # of a row; a missing key is an empty cell


def names() -> list[str]:
    """The names of all benchmarks, alphabetically."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def _figure(value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value or "")
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="name", choices=[*names(), []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="one seed and fewer tasks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = QUICK / "figures" if arguments.quick else DATA
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or [name for name in names() if name not in ONLY_BY_NAME]:
        print(f"### {name}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
        lines, began = [], time.perf_counter()
        for row in importlib.import_module(f"tests.benchmarks.bench_{name}").rows(arguments.quick):
            lines.append([_figure(row.get(key)) for key in KEYS])
            print(f"| {' | '.join(lines[-1])} |", flush=True)
        when, took = time.strftime("%Y-%m-%d"), time.perf_counter() - began
        about = f"Measured {when} at {source_revision()[:8]} in {took:.0f} s."
        print(f"\n{about}\n", flush=True)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            file.write(f"# {about}\n")
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
    return 0


if __name__ == "__main__":
    sys.exit(main())
