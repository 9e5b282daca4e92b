"""Tables of a list, complete: what the list does not say is filled in and named in `defaulted`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dreamshard.tables import NUM_BINS, Tables
from dreamshard.workloads.listed import ListedTable, check_records, list_tables
from dreamshard.workloads.zipf import expected_counts

__all__ = ["TablesFile", "check_records", "fill_tables", "list_tables", "read_tables"]

DEFAULT_BATCH_SIZE = 65_536
FILLABLE = ("pooling_factor", "lookups", "unique_rows", "bins")


@dataclass(frozen=True)
class TablesFile:
    """Tables of a file, and which of their columns are not from it.

    Attributes:
        tables: one per line of the file, in its order.
        defaulted: names of the columns that were filled in for at least one table: `pooling_factor`, `lookups`,
            `unique_rows`, `bins`.
    """

    tables: Tables
    defaulted: tuple[str, ...]


def read_tables(path: str | Path, defaults: Tables | None = None) -> TablesFile:
    """Read a list of tables.

    Args:
        path: `.csv` or `.parquet` with columns `name, rows, dim, pooling_factor` (or `lookups_per_sample_by_feature`,
            as in `1+30`) and optionally `bin_0..bin_16, lookups, unique_rows`; or `.json`: a list of objects with
            TorchRec's `name, num_embeddings, embedding_dim, feature_names` and optionally `pooling_factor`.
        defaults: a pool whose mean bins and reuse fill in what is missing; None for a Zipf law's expectation.

    Raises:
        ValueError: the file is missing, not of a known kind, or a line of it is wrong; the message names the line.
    """
    return fill_tables(list_tables(path), defaults)


def fill_tables(listed: Sequence[ListedTable], defaults: Tables | None = None) -> TablesFile:
    """Fill in what `listed` lacks; `defaults` as for `read_tables`."""
    filled = [_fill(table, defaults) for table in listed]
    missing = sorted({name for _, names in filled for name in names})
    rows = [table for table, _ in filled]
    return TablesFile(
        Tables(
            tuple(table.name for table in rows),
            rows=torch.tensor([table.rows for table in rows]),
            dim=torch.tensor([table.dim for table in rows]),
            pooling_factor=torch.tensor([table.pooling_factor for table in rows], dtype=torch.float64),
            bins=torch.tensor([table.bins for table in rows], dtype=torch.float64),
            lookups=torch.tensor([table.lookups for table in rows]),
            unique_rows=torch.tensor([table.unique_rows for table in rows]),
        ),
        tuple(missing),
    )


def _fill(table: ListedTable, defaults: Tables | None) -> tuple[ListedTable, list[str]]:
    """Fill in what `table` lacks; returns it and the names of what was filled in."""
    batch = _batch_size(defaults)
    pooling = table.pooling_factor
    if pooling is None:
        pooling = table.lookups / batch if table.lookups is not None else _mean_pooling(defaults)
    lookups = round(pooling * batch) if table.lookups is None else table.lookups
    unique, bins = table.unique_rows, table.bins
    if unique is None or bins is None:
        default_unique, default_bins = _reuse(table.rows, lookups, defaults)
        unique = default_unique if unique is None else unique
        bins = default_bins if bins is None else bins
    filled = replace(table, pooling_factor=pooling, lookups=lookups, unique_rows=unique, bins=bins)
    return filled, [name for name in FILLABLE if getattr(table, name) is None]


def _batch_size(defaults: Tables | None) -> int:
    if defaults is None or float(defaults.pooling_factor.sum()) == 0:
        return DEFAULT_BATCH_SIZE
    return max(1, round(float(defaults.lookups.sum() / defaults.pooling_factor.sum())))


def _mean_pooling(defaults: Tables | None) -> float:
    return 1.0 if defaults is None else float(defaults.pooling_factor.double().mean())


def _reuse(rows: int, lookups: int, defaults: Tables | None) -> tuple[int, tuple[float, ...]]:
    """Distinct rows and bins of `lookups` lookups: the pool's mean, or a Zipf law's expectation."""
    if not lookups:
        return 0, (0.0,) * NUM_BINS
    if defaults is None:
        counts = expected_counts(rows, lookups)
        total = sum(counts)
        return min(rows, lookups, round(total)), tuple(count / total for count in counts)
    share = float(defaults.unique_rows.sum() / defaults.lookups.sum().clamp(min=1))
    unique = min(rows, lookups, max(min(1, lookups), round(lookups * share)))
    return unique, tuple(defaults.bins.double().mean(dim=0).tolist())
