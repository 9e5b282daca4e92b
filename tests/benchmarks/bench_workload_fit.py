"""Fit of the generated Meta workloads to Meta's published figures: totals and every bin of both histograms.

    python -m tests.benchmarks.bench_workload_fit [--tenth]

At full size this generates 887 and 1405 million lookups, one table at a time; it takes minutes.
"""

import argparse
from typing import Any

import numpy as np

from dreamshard.tables import NUM_BINS
from dreamshard.workloads import WorkloadConfig, open_workload
from dreamshard.workloads.config import META_WORKLOADS
from dreamshard.workloads.meta_statistics import published_statistics
from dreamshard.workloads.table_statistics import access_counts, bin_counts

TOTAL_TOLERANCE = 0.03
BIN_TOLERANCE = 0.03


def rows(tenth: bool = False) -> list[dict[str, Any]]:
    """One row per published figure; `bar` is that figure, `ratio` the deviation over the tolerance: at most 1."""
    return [row for name in META_WORKLOADS for row in _fit(name, tenth)]


def _fit(name: str, tenth: bool) -> list[dict[str, Any]]:
    stats = published_statistics(name)
    num_tables = round(stats.num_tables / 10) if tenth else stats.num_tables
    part = num_tables / stats.num_tables
    unique, lookups = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    for table in open_workload(
        WorkloadConfig(source=name, num_tables=num_tables, batch_size=stats.batch_size)
    ).tables():
        counts = access_counts(table.lookups.indices.numpy(), table.rows)
        unique += bin_counts(counts)
        lookups += bin_counts(counts, weights=counts)
    found = [
        _row(f"{name}, {num_tables} tables: lookups", lookups.sum(), stats.lookups * part, relative=True),
        _row(f"{name}, {num_tables} tables: distinct rows", unique.sum(), stats.unique_rows * part, relative=True),
    ]
    for label, counted, shares in (
        ("distinct rows", unique, stats.unique_share),
        ("lookups", lookups, stats.lookup_share),
    ):
        for j in range(NUM_BINS):
            low = 0 if j == 0 else 2 ** (j - 1)
            bounds = f"({low}, {2**j}]" if j < NUM_BINS - 1 else f"({low}, inf)"
            value = counted[j] / counted.sum()
            found.append(_row(f"{name}: share of {label} with a count in {bounds}", value, shares[j], relative=False))
    return found


def _row(name: str, value: float, bar: float, *, relative: bool) -> dict[str, Any]:
    deviation = abs(value / bar - 1) / TOTAL_TOLERANCE if relative else abs(value - bar) / BIN_TOLERANCE
    return {"name": name, "value": float(value), "unit": "" if relative else "share", "bar": bar, "ratio": deviation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="a tenth of the tables, in seconds")
    print("| figure | generated | published | deviation / allowed |\n|---|---|---|---|")
    for row in rows(parser.parse_args().tenth):
        value, bar = (f"{row[key]:,.0f}" if row["bar"] > 1 else f"{row[key]:.4f}" for key in ("value", "bar"))
        print(f"| {row['name']} | {value} | {bar} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
