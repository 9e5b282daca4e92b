"""Run benchmarks and print a Markdown table of each, row by row as they come.

    python -m tests.benchmarks [names...] [--quick] [--write RESULTS.md]

A name is a file name without `bench_`, such as `training`, `placing` or `quality`; without names all benchmarks run.
`--write` replaces their tables between the `<!-- benchmarks -->` markers of a file and keeps those of other benchmarks.
A benchmark that fails is a row of its table, and the exit code is then 1.
"""

import argparse
import importlib
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from flows.runtime.source_revision import source_revision
from tests.helpers.marked_tables import write

MARKER = "<!-- benchmarks -->"
HEADER = ("| what | measured | bar | reference | ratio |", "|---|---|---|---|---|")
Benchmark = Callable[..., Iterable[dict[str, Any]]]


def names() -> list[str]:
    """The names of all benchmarks, alphabetically."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def benchmark(name: str) -> Benchmark:
    """The `rows` of one benchmark."""
    package = __package__ or "tests.benchmarks"
    found: Benchmark = importlib.import_module(f"{package}.bench_{name}").rows
    return found


def failed(row: dict[str, Any]) -> bool:
    """Whether a row reports a benchmark that failed."""
    return "error" in row


def collect(name: str, quick: bool, load: Callable[[str], Benchmark] = benchmark) -> Iterator[dict[str, Any]]:
    """The rows of one benchmark; any error, including one on import, becomes its last row."""
    try:
        rows = load(name)
        takes_quick = "quick" in inspect.signature(rows).parameters
        yield from rows(quick=quick) if takes_quick else rows()
    except Exception as error:  # noqa: BLE001 - one broken benchmark must not hide the others; it is reported
        traceback.print_exc(file=sys.stderr)
        yield {"name": name, "error": f"{type(error).__name__}: {error}"}


def line(row: dict[str, Any]) -> str:
    """One row of the Markdown table; a missing key is an empty cell."""
    if failed(row):
        text = str(row["error"]).replace("\n", " ").replace("|", "\\|")
        return f"| {row['name']} | failed: {text} | | | |"
    unit = row.get("unit") or ""
    value = _figure(row.get("value"))
    cells = [
        f"{value} {unit}".strip(),
        _figure(row.get("bar")),
        _figure(row.get("reference")),
        _figure(row.get("ratio"), 3),
    ]
    return "| " + " | ".join([str(row["name"]), *cells]) + " |"


def printed(
    chosen: Sequence[str], *, quick: bool, load: Callable[[str], Benchmark] = benchmark
) -> tuple[dict[str, list[str]], bool]:
    """Print the tables row by row; returns the lines of each and whether all benchmarks succeeded."""
    tables, well = {}, True
    for name in chosen:
        lines = [f"### {name}", "", *HEADER]
        print("\n".join(lines), flush=True)
        began = time.perf_counter()
        for row in collect(name, quick, load):
            lines.append(line(row))
            print(lines[-1], flush=True)
            well = well and not failed(row)
        lines += [
            "",
            f"Measured {time.strftime('%Y-%m-%d')} at {source_revision()[:8]} in {time.perf_counter() - began:.0f} s.",
        ]
        print("\n".join(lines[-2:]), end="\n\n", flush=True)
        tables[name] = lines
    return tables, well


def _figure(value: Any, digits: int = 4) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.{digits}g}"
    return str(value)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(names())}; default: all")
    parser.add_argument(
        "--quick", action="store_true", help="one seed and fewer tasks, in the benchmarks that support it"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help=f"put the tables between its {MARKER} markers")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose one of {', '.join(names())}")
    torch.set_num_threads(1)
    tables, well = printed(arguments.names or names(), quick=arguments.quick)
    if arguments.write:
        write(arguments.write, MARKER, "###", tables)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
