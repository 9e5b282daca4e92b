"""Lookups per second of ingest: statistics and Parquet, on tables like Meta's.

    python -m tests.benchmarks.bench_ingest [--tables 24]

The bar holds for two cores together.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dreamshard.workloads import (
    LookupFiles,
    WorkloadConfig,
    WorkloadTable,
    open_workload,
    statistics,
    write_lookups,
)

BAR = 40e6
THREADS = 2


def rows(num_tables: int = 24) -> list[dict[str, Any]]:
    """Lookups per second of each step; `ratio` above 1 beats the bar."""
    workload = open_workload(WorkloadConfig(num_tables=num_tables))
    tables = list(workload.tables())  # all in advance, so that generating them is not timed
    total = sum(len(table.lookups.indices) for table in tables)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def write(table: WorkloadTable) -> None:
            write_lookups(folder / f"{table.name}.parquet", table.lookups)

        def ingest(table: WorkloadTable) -> None:
            statistics(table)
            write(table)

        def read(table: WorkloadTable) -> None:
            LookupFiles({table.name: folder / f"{table.name}.parquet"})(table.name)

        ingest(tables[0])  # warm-up, not timed
        cpu = _timed(ingest, tables, 1)[1]
        found = [
            _row(f"ingest, by the CPU time of {THREADS} cores, whatever else runs", total, cpu / THREADS, cpu),
            _row("statistics, one thread", total, *_timed(statistics, tables, 1)),
            _row("Parquet, one thread", total, *_timed(write, tables, 1)),
            _row("ingest, one thread", total, *_timed(ingest, tables, 1)),
            _row(f"ingest, {THREADS} threads", total, *_timed(ingest, tables, THREADS)),
            _row("read back and check, one thread", total, *_timed(read, tables, 1)),
        ]
        megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    found.append(
        {"name": "bytes per lookup on disk", "value": megabytes * 1e6 / total, "unit": "B", "bar": 4, "ratio": None}
    )
    return found


def peak_rows(num_tables: int = 200) -> list[dict[str, Any]]:
    """Peak memory of streaming many tables and of the largest alone; run in a fresh process."""
    workload = open_workload(WorkloadConfig(num_tables=num_tables))
    sizes: list[int] = []
    before = _peak_bytes()
    with tempfile.TemporaryDirectory() as name:
        for table in workload.tables():
            statistics(table)
            path = Path(name) / "t.parquet"
            write_lookups(path, table.lookups)
            sizes.append(path.stat().st_size)
    grown = _peak_bytes() - before
    return [
        {
            "name": f"peak memory of ingesting {sum(sizes) / 1e6:.0f} MB in {num_tables} tables, the largest table = 1",
            "value": grown / max(sizes),
            "unit": "tables",
            "bar": sum(sizes) / max(sizes),
            "ratio": sum(sizes) / max(1, grown),
        }
    ]


def _timed(step: Callable[[WorkloadTable], Any], tables: list[WorkloadTable], threads: int) -> tuple[float, float]:
    """Wall and CPU seconds of `step` on all tables; the best of three rounds."""
    wall, cpu = float("inf"), float("inf")
    for _ in range(3):
        start, cpu_start = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(step, tables))
        wall = min(wall, time.perf_counter() - start)
        cpu = min(cpu, time.process_time() - cpu_start)
    return wall, cpu


def _row(name: str, total: int, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "name": f"{name} (CPU {cpu / total * 1e9:.1f} ns per lookup)",
        "value": total / wall,
        "unit": "lookups/s",
        "bar": BAR,
        "ratio": total / wall / BAR,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=24)
    arguments = parser.parse_args()
    print("| name | measured | bar | ratio |\n|---|---|---|---|")
    for row in [*peak_rows(), *rows(arguments.tables)]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"| {row['name']} | {row['value']:.4g} {row['unit']} | {row['bar']:.4g} | {ratio} |")


if __name__ == "__main__":
    main()
