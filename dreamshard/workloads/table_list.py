"""Lists of tables as people and programs write them, in CSV, Parquet and JSON: read, checked, and completed."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pydantic
import torch
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from dreamshard.files.foreign import MOST_COLUMNS, MOST_ROWS, InputError, brief, reading
from dreamshard.tables import DEFAULT_BATCH, NUM_BINS, Optimizer, Precision, Tables, block_shares, padded_dim
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


def _adding_up(bins: tuple[float, ...]) -> tuple[float, ...]:
    if sum(bins) > 0 and abs(sum(bins) - 1) > 0.01:
        raise ValueError(
            f"shares of distinct rows in bins, or of lookups in blocks, add up to {sum(bins):.4g}, not to 1"
        )
    return bins


Pooling = Literal["sum", "mean", "none"]
"""How a sample's vectors become one; `none` keeps each, as for sequences."""
_OUTPUTS = {"pooled": "sum", "sequence": "none"}

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Bins = Annotated[tuple[Number, ...], Field(min_length=NUM_BINS, max_length=NUM_BINS), AfterValidator(_adding_up)]
_JOINED = BeforeValidator(lambda value: value.split("+") if isinstance(value, str) else value)
Features = Annotated[tuple[str, ...], _JOINED]
BlockShare = Annotated[tuple[Number, ...], Field(min_length=1), _JOINED, AfterValidator(_adding_up)]
_AS_PRINTED = BeforeValidator(lambda value: value.rpartition(".")[2].lower() if isinstance(value, str) else value)
"""TorchRec prints values as `FP16` or `DataType.FP16`."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True))
class ModelTable:
    """One table of a list or a model; None if lookups are not known.

    Attributes:
        name: in the model, unique within its module.
        dim: need not be a multiple of 4.
        pooling_factor: this, `lookups`, `unique_rows` and `bins` are as in `Tables`.
        features: names of the features that look it up.
        module_path: of its collection within the model, as in `named_modules`; empty for the model itself.
        precision: type of the weights.
        is_weighted: whether its lookups have weights.
        optimizer: fused into the backward pass; None if the model does not say.
        num_poolings: pooled vectors per sample; None for one per feature.
        block_share: of the lookups, in each of any number of equal blocks of rows (`0.7+0.2+0.1` in CSV).
        collection: class of the module that holds it, with its package; empty if unknown.

    Raises:
        ValidationError: a value is out of range.
    """

    name: Annotated[str, Field(min_length=1)]
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    dim: Annotated[int, Field(ge=1, le=MOST_COLUMNS)]
    pooling_factor: Annotated[Number, Field(le=1e6)] | None = None
    lookups: Count | None = None
    unique_rows: Count | None = None
    bins: Bins | None = None
    features: Features = ()
    module_path: str = ""
    precision: Annotated[Precision, _AS_PRINTED] = "fp32"
    pooling: Annotated[Pooling, _AS_PRINTED, BeforeValidator(lambda value: _OUTPUTS.get(value, value))] = "sum"
    is_weighted: bool = False
    optimizer: Annotated[Optimizer, _AS_PRINTED] | None = None
    collection: str = ""
    num_poolings: Annotated[float, Field(gt=0, le=1e6)] | None = None
    block_share: BlockShare | None = None

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name

    @property
    def poolings(self) -> float:
        """As in `Tables`."""
        pooled = float(max(1, len(self.features))) if self.num_poolings is None else self.num_poolings
        return 0.0 if self.pooling == "none" else pooled


_TABLE = TypeAdapter(ModelTable)


def read_tables(path: str | Path, defaults: Tables | None = None) -> Tables:
    """Read a list of tables and fill in missing statistics.

    Args:
        path: `.csv` or `.parquet` with columns `name, rows, dim, pooling_factor` and optionally `bin_0..bin_16, lookups,
            unique_rows`; or `.json`: a list of objects with these fields. TorchRec's names of columns are read too. Dims are
            rounded up to multiples of 4.
        defaults: data set that fills in missing values, as for `fill_missing_columns`.

    Raises:
        ValueError: the file is missing, of an unknown kind, or has a wrong line, which the message names.
    """
    return fill_missing_columns(list_tables(path), defaults)


def list_tables(path: str | Path) -> list[ModelTable]:
    """Read a list of tables in a format of `read_tables`, with nothing filled in; raises like it.

    The list may also have TorchRec's `feature_names` (`a+b` in CSV), `data_type`, `pooling`, and `module_path`,
    `is_weighted`, `optimizer`.
    """
    file = Path(path)
    if file.suffix not in (".csv", ".parquet", ".json") or not file.is_file():
        raise ValueError(f"{file} is no list of tables; give the path of a .csv, .parquet or .json file")
    with reading(file, "is no readable list of tables", "write it again"):
        if file.suffix == ".json":
            records = json.loads(file.read_bytes())
            records = records.get("tables") if isinstance(records, dict) else records
        elif file.suffix == ".csv":
            options = pa.csv.ConvertOptions(column_types=_TEXTS, null_values=[""], strings_can_be_null=True)
            records = pa.csv.read_csv(file, convert_options=options).to_pylist()
        else:
            records = pq.ParquetFile(file).read().to_pylist()
        if not isinstance(records, list) or not records or not all(isinstance(each, dict) for each in records):
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
    complete = [_filled(table, batch, defaults) for table in with_ingested(listed, defaults)]
    types = dict.fromkeys(("pooling_factor", "bins", "poolings"), torch.float64)
    tensors = {
        name: torch.tensor([getattr(table, name) for table in complete], dtype=types.get(name, torch.int64))
        for name in ("rows", "dim", "poolings", *FILLABLE)
    }
    shares = block_shares([table.block_share for table in complete])
    return Tables(tuple(table.name for table in complete), **tensors, block_share=shares)


def with_ingested(listed: Sequence[ModelTable], ingested: Tables | None) -> list[ModelTable]:
    """The tables, with missing statistics from the ingested table of equal name, size and pooling factor."""
    known: dict[str, dict[str, Any]] = {}
    if ingested is not None:
        columns = {column: getattr(ingested, column).tolist() for column in ("rows", "dim", *FILLABLE)}
        shares = ingested.block_share
        columns["block_share"] = [()] * len(ingested) if shares is None else shares.tolist()
        known = {name: {each: columns[each][t] for each in columns} for t, name in enumerate(ingested.names)}

    def complete(table: ModelTable) -> ModelTable:
        own, pooling = known.get(table.name), table.pooling_factor
        if own is None or (table.rows, padded_dim(table.dim)) != (own["rows"], own["dim"]):
            return table
        if pooling is not None and not math.isclose(pooling, own["pooling_factor"], rel_tol=_SAME_POOLING):
            return table
        filled = {column: own[column] for column in lacking([table])}
        return replace(table, **filled, block_share=table.block_share or tuple(own["block_share"]) or None)

    return [complete(table) for table in listed]


def lacking(listed: Sequence[ModelTable]) -> tuple[str, ...]:
    """Columns of `FILLABLE` that some of the tables lack."""
    return tuple(name for name in FILLABLE if any(getattr(table, name) is None for table in listed))


def _filled(table: ModelTable, batch: int, defaults: Tables | None) -> ModelTable:
    """The table with a multiple of 4 columns, and all columns of `FILLABLE`, for a batch of so many samples."""
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
    return replace(
        table,
        dim=padded_dim(table.dim),
        pooling_factor=pooling,
        lookups=lookups,
        unique_rows=min(unique, table.rows, lookups),
        bins=bins,
    )
