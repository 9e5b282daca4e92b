"""Tables from a file, to be placed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.tables import Tables
    from dreamshard.workloads.table_list import ListedTable
    from storage.store import Store

DATASETS = 20
"""Newest data sets that are searched for tables."""

_SAME_POOLING = 0.01  # relative: that of an ingested table is counted in lookups that were generated


def read_listed(store: "Store", path: Path, note: Callable[[str], None]) -> "Tables":
    """The tables of a file, or of a bundled list by its name; `note` gets a sentence on what was filled in.

    What the list lacks is as ingested for the same tables, by the newest data set that has all of them, or else by the newest
    one; other tables get its mean.
    """
    from dreamshard.workloads import bundled_lists
    from dreamshard.workloads.table_list import list_tables
    from dreamshard.workloads.tables_file import FILLABLE, fill_missing_columns

    path = bundled_lists().get(str(path), path)
    _check_name(path)
    listed = list_tables(path)
    lacking = [name for name in FILLABLE if any(getattr(table, name) is None for table in listed)]
    version, ingested = _data_set(store, listed) if lacking else (None, None)
    known = [table if ingested is None else _known(table, ingested) for table in listed]
    if lacking:
        num_known = sum(table.bins is not None for table in known)
        note(f"{path} lacks {', '.join(lacking)}: {_source(store, version, num_known, len(known), lacking)}")
    return fill_missing_columns(known, ingested).tables


def _check_name(path: Path) -> None:
    """Refuse a name that is neither a bundled list's nor a file's.

    Raises:
        ValueError: the name is; the message lists the bundled ones.
    """
    from dreamshard.workloads import bundled_lists

    if path.suffix or path.is_file():
        return
    near = get_close_matches(str(path), bundled_lists(), n=1)
    meant = f"did you mean {near[0]!r}? Or " if near else ""
    raise ValueError(
        f"there is no bundled list {str(path)!r}, so there are no tables to place; {meant}give a file that ends in "
        f".csv, .parquet or .json, model.py:make_model, or one of {', '.join(bundled_lists())}"
    )


def _data_set(store: "Store", listed: "Sequence[ListedTable]") -> "tuple[str | None, Tables | None]":
    """The newest data set that has all of the tables, else the newest one; None before the first."""
    versions = store.lake.dataset_versions()[-DATASETS:]
    for version in reversed(versions):
        tables = store.lake.read_dataset(version)
        if all(_known(table, tables).bins is not None for table in listed):
            return version, tables
    return (versions[-1], store.lake.read_dataset(versions[-1])) if versions else (None, None)


def _source(store: "Store", version: str | None, num_known: int, num_listed: int, lacking: Sequence[str]) -> str:
    """Where the columns come from, for people."""
    if version is None:
        pooling = " and one per sample" if "pooling_factor" in lacking else ""
        return f"no tables have been ingested into this home, so lookups are filled in by a Zipf law{pooling}"
    data_set = f"data set {version} ({store.lake.dataset_source(version)})"
    if num_known == num_listed:
        return f"taken from the same tables in {data_set}"
    if num_known:
        return f"taken from the same tables in {data_set} where it has them ({num_known} of {num_listed}), else from its mean"
    return f"taken from the mean of the tables ingested last, {data_set}"


def _known(table: "ListedTable", ingested: "Tables") -> "ListedTable":
    """The table with the lookups of the same one, of equal size and pooling, as far as the list does not say."""
    if table.name not in ingested.names:
        return table
    t = ingested.names.index(table.name)
    pooling = float(ingested.pooling_factor[t])
    same_size = (table.rows, table.dim) == (int(ingested.rows[t]), int(ingested.dim[t]))
    if not same_size or not math.isclose(table.pooling_factor or pooling, pooling, rel_tol=_SAME_POOLING):
        return table
    return replace(
        table,
        pooling_factor=pooling if table.pooling_factor is None else table.pooling_factor,
        lookups=int(ingested.lookups[t]) if table.lookups is None else table.lookups,
        unique_rows=int(ingested.unique_rows[t]) if table.unique_rows is None else table.unique_rows,
        bins=tuple(ingested.bins[t].tolist()) if table.bins is None else table.bins,
    )
