"""Summarise collected costs of shards: fused cost against the sum of single tables, and what cost depends on.

`python -m dreamshard.shard_profiling.report FOLDER` prints the summary as Markdown.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from dreamshard.formatting import markdown_table
from dreamshard.shard_profiling.dataset import MeasuredShard, read_shards

Row = dict[str, str | int]
Groups = dict[int, list[tuple[float, float]]]
"""Number of a group -> forward and backward value of each of its shards."""

TABLE_RANGES = ((1, 1), (2, 3), (4, 5), (6, 8), (9, 15), (16, 30), (31, 60))


def fusion_rows(shards: Sequence[MeasuredShard]) -> list[Row]:
    """Median over shards of fused cost / sum of its tables' costs alone, by number of tables."""
    alone: dict[int | None, list[MeasuredShard]] = {}
    for shard in shards:
        if shard.forward_ms is not None:
            alone.setdefault(shard.alone_of, []).append(shard)
    ratios: Groups = {}
    for shard in shards:
        singles = alone.get(shard.index, [])
        if shard.forward_ms is not None and shard.backward_ms is not None and len(singles) == len(shard.tables):
            group = next(i for i, (low, high) in enumerate(TABLE_RANGES) if low <= len(singles) <= high)
            forward = shard.forward_ms / sum(single.forward_ms or 0.0 for single in singles)
            backward = shard.backward_ms / sum(single.backward_ms or 0.0 for single in singles)
            ratios.setdefault(group, []).append((forward, backward))
    labels = [str(low) if low == high else f"{low}-{high}" for low, high in TABLE_RANGES]
    return _medians(ratios, "tables", labels, "fused {} / sum of singles", ".2f")


FACTORS: dict[str, tuple[Callable[[MeasuredShard], float], tuple[float, ...]]] = {
    "dim": (lambda s: _mean(s, s.tables.dim.double().tolist()), (8.0, 16.0, 32.0, 64.0, 128.0)),
    "rows": (lambda s: _mean(s, s.tables.rows.double().tolist()), (1e4, 1e5, 1e6, 4e6)),
    "pooling": (lambda s: float(s.tables.pooling_factor.mean()), (1.0, 4.0, 16.0, 64.0)),
    "reuse": (lambda s: float(s.tables.lookups.sum()) / max(1, int(s.tables.unique_rows.sum())), (2.0, 4.0, 8.0, 32.0)),
    "tables": (lambda s: float(len(s.tables)), (2.0, 4.0, 8.0, 16.0, 32.0)),
}
"""Factor -> its value for a shard, and the edges between groups; means are weighted by lookups."""


def factor_rows(shards: Sequence[MeasuredShard], factor: str) -> list[Row]:
    """Median picoseconds per weight looked up, forward and backward, by one factor, over the shards that fit."""
    value, edges = FACTORS[factor]
    groups: Groups = {}
    for shard in shards:
        weights = float((shard.tables.lookups.double() * shard.tables.dim.double()).sum())
        if shard.forward_ms is None or shard.backward_ms is None or not weights:
            continue
        group = sum(value(shard) >= edge for edge in edges)
        groups.setdefault(group, []).append((1e9 * shard.forward_ms / weights, 1e9 * shard.backward_ms / weights))
    between = (f"{low:g} to {high:g}" for low, high in pairwise(edges))
    labels = [f"below {edges[0]:g}", *between, f"{edges[-1]:g} and above"]
    return _medians(groups, factor, labels, "{} ps per weight", ".3g")


def summary(shards: Sequence[MeasuredShard]) -> str:
    """Measurement conditions and all tables, as Markdown."""
    first = shards[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    parts = [
        f"{len(shards)} shards on {first.hardware} ({versions}), batch {first.batch_size}, {first.precision}, "
        f"{first.optimizer}",
        markdown_table(fusion_rows(shards)),
        *(markdown_table(factor_rows(shards, factor)) for factor in FACTORS),
    ]
    return "\n\n".join(part for part in parts if part)


def _mean(shard: MeasuredShard, values: Sequence[float]) -> float:
    weights = shard.tables.lookups.tolist()
    return float(sum(w * v for w, v in zip(weights, values, strict=True)) / max(1, sum(weights)))


def _medians(groups: Groups, column: str, labels: Sequence[str], quantity: str, form: str) -> list[Row]:
    """One row per group: its label, number of shards, and median forward and backward value."""
    rows = []
    for group, pairs in sorted(groups.items()):
        row: Row = {column: labels[group], "shards": len(pairs)}
        for phase, values in zip(("forward", "backward"), zip(*pairs, strict=True), strict=True):
            row[quantity.format(phase)] = format(median(values), form)
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.stdout.write(summary(read_shards(Path(sys.argv[1]))) + "\n")
