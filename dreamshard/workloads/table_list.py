"""Lists of tables as people and programs write them, in CSV, Parquet and JSON: read, checked, and completed."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from pydantic import TypeAdapter

from dreamshard.files import InputError, brief, reading
from dreamshard.model_table import ModelTable
from dreamshard.tables import DEFAULT_BATCH, NUM_BINS, Tables, block_shares, padded_dim
from dreamshard.workloads.zipf import expected_counts

FILLABLE = ("bins", "lookups", "pooling_factor", "unique_rows")

_BINS = tuple(f"bin_{i}" for i in range(NUM_BINS))
_OTHER_NAMES = {
    "num_embeddings": "rows",
    "embedding_dim": "dim",
    "feature_names": "features",
    "data_type": "precision",
    "collection": "module_path",
    "output": "pooling",
    "row": "rows",
    "index": "name",
}
"""TorchRec's names for columns, and the names in the `table_configs.json` of the papers' authors."""
_TEXTS = dict.fromkeys(("name", "index", "features", "feature_names"), pa.string())  # of CSV, even if they are numbers
_SAME_POOLING = 0.01  # relative: the pooling factor of an ingested table is counted in generated lookups


_TABLE = TypeAdapter(ModelTable)


def list_tables(path: str | Path) -> list[ModelTable]:
    """Read a list of tables, with nothing filled in.

    Args:
        path: `.csv` or `.parquet` with columns `name, rows, dim, pooling_factor` and optionally `bin_0..bin_16, lookups,
            unique_rows`, TorchRec's `feature_names` (`a+b` in CSV), `data_type`, `pooling`, and `module_path`,
            `is_weighted`, `optimizer`; or `.json`: a list of objects with these fields. TorchRec's names of columns are
            read too.

    Raises:
        ValueError: the file is missing, of an unknown kind, or has a wrong line, which the message names.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {file}; check the path")
    if file.suffix not in (".csv", ".parquet", ".json"):
        raise ValueError(f"{file} is not a list of tables; give the path of a .csv, .parquet or .json file")
    with reading(file, "is not a readable list of tables", "check its format"):
        if file.suffix == ".json":
            records = json.loads(file.read_bytes())
            records = records.get("tables") if isinstance(records, dict) else records
        elif file.suffix == ".csv":
            options = pa.csv.ConvertOptions(column_types=_TEXTS, null_values=[""], strings_can_be_null=True)
            records = pa.csv.read_csv(file, convert_options=options).to_pylist()
        else:
            records = pq.ParquetFile(file).read().to_pylist()
        if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
            raise InputError(
                f"{file} lists no tables; give a line or an object per table, with name, rows, dim and pooling_factor "
                "(docs/own-tables.md converts other formats)"
            )
    first, of = (2, "line") if file.suffix == ".csv" else (1, "table")
    return check_records({f"{file}, {of} {first + i}": record for i, record in enumerate(records)})


def check_records(records: Mapping[str, Mapping[str, Any]]) -> list[ModelTable]:
    """Check records from any origin, by their positions for messages (`tables.csv, line 3`).

    Raises:
        ValueError: a record is wrong or a name occurs twice, and the message names the position.
    """
    tables: dict[str, ModelTable] = {}
    for where, record in records.items():
        given = {_OTHER_NAMES.get(key, key): value for key, value in record.items() if value not in (None, "")}
        if missing := [column for column in ("name", "rows", "dim") if column not in given]:
            raise InputError(f"{where} has no {', '.join(missing)} (it has {brief(list(record))}); add what is missing")
        if given.keys() & set(_BINS):
            given["bins"] = [given.get(column) for column in _BINS]
        given.setdefault("features", (str(given["name"]),))
        with reading(where, "is wrong", "correct it"):
            table = _TABLE.validate_python(given)
        if table.path in tables:
            raise InputError(f"{where}: table {table.name!r} is listed before; rename one of them")
        tables[table.path] = table
    return list(tables.values())


def fill_missing_columns(listed: Sequence[ModelTable], defaults: Tables | None = None) -> Tables:
    """Complete `Tables` from a list.

    Args:
        listed: tables; a missing pooling factor is one lookup per feature, or the counted lookups per sample.
        defaults: data set whose lookups fill in bins, lookups and distinct rows: of the same table if it has it
            (`with_ingested`), else its mean reuse; None for a Zipf law's expectation.
    """
    batch = DEFAULT_BATCH
    if defaults is not None and float(defaults.pooling_factor.sum()):
        batch = max(1, round(float(defaults.lookups.sum() / defaults.pooling_factor.sum())))
    listed = with_ingested(listed, defaults)
    complete = [_filled(table, batch, defaults) for table in listed]
    types = dict.fromkeys(("pooling_factor", "bins", "poolings"), torch.float64)
    tensors = {
        name: torch.tensor([columns[name] for columns in complete], dtype=types.get(name, torch.int64))
        for name in complete[0]
    }
    shares = block_shares([table.block_share for table in listed])
    return Tables(tuple(table.name for table in listed), **tensors, block_share=shares)


def with_ingested(listed: Sequence[ModelTable], ingested: Tables | None) -> list[ModelTable]:
    """The tables, with missing statistics from the ingested table of equal name, size and pooling factor."""
    if ingested is None:
        return list(listed)
    columns = {name: values.tolist() for name, values in ingested.columns(torch.arange(len(ingested))).items()}
    position = {name: t for t, name in enumerate(ingested.names)}

    def complete(table: ModelTable) -> ModelTable:
        known = {column: values[position[table.name]] for column, values in columns.items()}
        usual = known["pooling_factor"] if table.pooling_factor is None else table.pooling_factor
        same_size = (table.rows, padded_dim(table.dim)) == (known["rows"], known["dim"])
        if not same_size or not math.isclose(usual, known["pooling_factor"], rel_tol=_SAME_POOLING):
            return table
        filled = {column: known[column] for column in lacking([table])}
        return replace(table, **filled, block_share=table.block_share or known.get("block_share"))

    return [complete(table) if table.name in position else table for table in listed]


def lacking(listed: Sequence[ModelTable]) -> tuple[str, ...]:
    """Columns of `FILLABLE` that some of the tables lack."""
    return tuple(name for name in FILLABLE if any(getattr(table, name) is None for table in listed))


def _filled(table: ModelTable, batch: int, defaults: Tables | None) -> dict[str, Any]:
    """A table's columns of `Tables`, with its dim rounded up to a multiple of 4, for a batch of so many samples."""
    pooling, lookups = table.pooling_factor, table.lookups
    if pooling is None:
        pooling = float(max(1, len(table.features))) if lookups is None else lookups / batch
    lookups = round(pooling * batch) if lookups is None else lookups
    unique, bins = table.unique_rows, table.bins
    if unique is None or bins is None:
        if defaults is None or not lookups:
            counts = expected_counts(table.rows, lookups)  # 0 for a table that is not looked up
            expected = sum(counts)
        else:
            counts = tuple(defaults.bins.double().sum(dim=0).tolist())
            expected = lookups * float(defaults.unique_rows.sum() / defaults.lookups.sum().clamp(min=1))
        shares = tuple(count / max(sum(counts), 1e-12) for count in counts)
        unique, bins = max(1, round(expected)) if unique is None else unique, bins or shares
    return {
        "rows": table.rows,
        "dim": padded_dim(table.dim),
        "poolings": table.poolings,
        "pooling_factor": pooling,
        "lookups": lookups,
        "unique_rows": min(unique, table.rows, lookups),
        "bins": bins,
    }
