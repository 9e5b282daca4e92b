"""Complete `Tables` from a list: columns that the list lacks are filled in and named."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dreamshard.tables import DEFAULT_BATCH, NUM_BINS, Tables
from dreamshard.workloads.table_list import ListedTable, list_tables
from dreamshard.workloads.zipf import expected_counts

FILLABLE = ("bins", "lookups", "pooling_factor", "unique_rows")


@dataclass(frozen=True)
class TablesFile:
    """Tables of a list.

    Attributes:
        tables: one per line, in the list's order.
        defaulted: columns of `FILLABLE` that were filled in for at least one table.
    """

    tables: Tables
    defaulted: tuple[str, ...]


def read_tables(path: str | Path, defaults: Tables | None = None) -> TablesFile:
    """Read a list of tables and fill in what it lacks.

    Args:
        path: `.csv` or `.parquet` with columns `name, rows, dim, pooling_factor` (or `lookups_per_sample_by_feature`,
            as in `1+30`) and optionally `bin_0..bin_16, lookups, unique_rows`; or `.json`: a list of objects with
            TorchRec's `name, num_embeddings, embedding_dim, feature_names` and optionally `pooling_factor`.
        defaults: pool whose mean pooling, bins and reuse fill in missing values; None for a Zipf law's expectation.

    Raises:
        ValueError: the file is missing, of an unknown kind, or has a wrong line, which the message names.
    """
    return fill_missing_columns(list_tables(path), defaults)


def fill_missing_columns(listed: Sequence[ListedTable], defaults: Tables | None = None) -> TablesFile:
    """Fill in what `listed` lacks; `defaults` as for `read_tables`."""
    complete = [_fill(table, defaults) for table in listed]
    columns = {name: [getattr(table, name) for table in complete] for name in ("rows", "dim", *FILLABLE)}
    tables = Tables(
        tuple(table.name for table in complete),
        **{
            name: torch.tensor(values, dtype=torch.float64 if name in ("pooling_factor", "bins") else torch.int64)
            for name, values in columns.items()
        },
    )
    return TablesFile(tables, tuple(name for name in FILLABLE if any(getattr(table, name) is None for table in listed)))


def _fill(table: ListedTable, defaults: Tables | None) -> ListedTable:
    batch, pooling, lookups = DEFAULT_BATCH, table.pooling_factor, table.lookups
    if defaults is not None and float(defaults.pooling_factor.sum()):
        batch = max(1, round(float(defaults.lookups.sum() / defaults.pooling_factor.sum())))
    if pooling is None and lookups is not None:
        pooling = lookups / batch
    elif pooling is None:
        pooling = 1.0 if defaults is None else float(defaults.pooling_factor.double().mean())
    if lookups is None:
        lookups = round(pooling * batch)
    unique, bins = table.unique_rows, table.bins
    if unique is None or bins is None:
        default_unique, default_bins = _reuse(table.rows, lookups, defaults)
        unique, bins = default_unique if unique is None else unique, bins or default_bins
    return replace(table, pooling_factor=pooling, lookups=lookups, unique_rows=unique, bins=bins)


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
