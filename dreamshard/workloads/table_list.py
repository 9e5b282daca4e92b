"""Lists of tables as people and programs write them, in CSV, Parquet and JSON: read, checked, and completed."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow.parquet as pq
import pydantic
import torch
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from dreamshard.files.foreign import MOST_COLUMNS, MOST_ROWS, InputError, brief, json_content, reading
from dreamshard.tables import DEFAULT_BATCH, NUM_BINS, Optimizer, Precision, Tables, padded_dim
from dreamshard.workloads.zipf import expected_counts

FILLABLE = ("bins", "lookups", "pooling_factor", "unique_rows")

_BINS = tuple(f"bin_{i}" for i in range(NUM_BINS))
_OTHER_NAMES = {
    "num_embeddings": "rows",
    "embedding_dim": "dim",
    "feature_names": "features",
    "data_type": "precision",
    "row": "rows",
    "index": "name",
}
"""TorchRec's names for columns, and the names in the `table_configs.json` of the papers' authors."""
_MOST_WEIGHTS = 2**57  # of all tables together, so that bytes of weights and optimizer state fit 64 bits
_SAME_POOLING = 0.01  # relative: the pooling factor of an ingested table is counted in generated lookups

Record = tuple[str, Mapping[str, Any]]
"""Position of a record for messages (`tables.csv, line 3`), and its columns by the names of `ModelTable`."""


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("terminals cannot show some of its characters")
    return name


def _adding_up(bins: tuple[float, ...]) -> tuple[float, ...]:
    if sum(bins) > 0 and abs(sum(bins) - 1) > 0.01:
        raise ValueError(f"bin_0 to bin_16 are shares of the distinct rows, but add up to {sum(bins):.4g}")
    return bins


Pooling = Literal["sum", "mean", "none"]
"""How a sample's vectors become one; `none` keeps each, as for sequences."""

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Bins = Annotated[tuple[Number, ...], Field(min_length=NUM_BINS, max_length=NUM_BINS), AfterValidator(_adding_up)]
Features = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: value.split("+") if isinstance(value, str) else value)
]
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
        collection: class of the module that holds it, with its package; empty where that is not known.

    Raises:
        ValidationError: a value is out of range.
    """

    name: Annotated[str, Field(min_length=1), AfterValidator(_printable)]
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    dim: Annotated[int, Field(ge=1, le=MOST_COLUMNS)]
    pooling_factor: Annotated[Number, Field(le=1e6)] | None = None
    lookups: Count | None = None
    unique_rows: Count | None = None
    bins: Bins | None = None
    features: Features = ()
    module_path: str = ""
    precision: Annotated[Precision, _AS_PRINTED] = "fp32"
    pooling: Annotated[Pooling, _AS_PRINTED] = "sum"
    is_weighted: bool = False
    optimizer: Annotated[Optimizer, _AS_PRINTED] | None = None
    collection: str = ""

    def __post_init__(self) -> None:
        if self.unique_rows is not None and self.unique_rows > min(self.rows, self.lookups or self.rows):
            raise ValueError(f"unique_rows is {self.unique_rows}, more than the table's rows or lookups")

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name


def read_tables(path: str | Path, defaults: Tables | None = None) -> Tables:
    """Read a list of tables and fill in what it lacks.

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
    readers = {".csv": _csv_records, ".parquet": _parquet_records, ".json": _json_records}
    if file.suffix not in readers:
        raise ValueError(f"{file} is no list of tables, judging by its name; give a .csv, .parquet or .json file")
    if not file.is_file():
        raise ValueError(f"there is no file {file}, so there are no tables to read; check the path")
    records = [(where, _renamed(record)) for where, record in readers[file.suffix](file)]
    if not records:
        raise ValueError(f"{file} lists no tables, so there is nothing to place; add one line per table")
    _check_columns(records[0][1], records[0][0])
    return check_records(records)


def check_records(records: Sequence[Record]) -> list[ModelTable]:
    """Check records from any origin.

    Raises:
        ValueError: a record is wrong or a name occurs twice, and the message names the position; or all tables together
            are too large to be counted.
    """
    tables = [_parsed(where, record) for where, record in records]
    first_at: dict[str, str] = {}
    for table, (where, _) in zip(tables, records, strict=True):
        if first_at.setdefault(table.path, where) != where:
            raise InputError(f"{where}: table {table.name!r} is also at {first_at[table.path]}; rename one of them")
    weights = sum(table.rows * table.dim for table in tables)
    if weights > _MOST_WEIGHTS:
        where = records[0][0].partition(",")[0]
        raise InputError(
            f"{where}: the tables have {weights:.3g} weights, more than any cluster holds; correct rows and dims"
        )
    return tables


def fill_missing_columns(listed: Sequence[ModelTable], defaults: Tables | None = None) -> Tables:
    """Complete `Tables` from a list.

    Args:
        listed: tables; a missing pooling factor is 1, or the counted lookups per sample.
        defaults: data set whose lookups fill in bins, lookups and distinct rows: of the same table if it has it
            (`with_ingested`), else its mean reuse; None for a Zipf law's expectation.
    """
    complete = [_fill(table, defaults) for table in with_ingested(listed, defaults)]
    columns = {name: [getattr(table, name) for table in complete] for name in ("rows", "dim", *FILLABLE)}
    types = {"pooling_factor": torch.float64, "bins": torch.float64}
    tensors = {name: torch.tensor(values, dtype=types.get(name, torch.int64)) for name, values in columns.items()}
    return Tables(tuple(table.name for table in complete), **tensors)


def lacking(listed: Sequence[ModelTable]) -> tuple[str, ...]:
    """Columns of `FILLABLE` that some of the tables lack."""
    return tuple(name for name in FILLABLE if any(getattr(table, name) is None for table in listed))


def with_ingested(listed: Sequence[ModelTable], ingested: Tables | None) -> list[ModelTable]:
    """The tables, with what their list lacks taken from the ingested table of equal name, size and pooling factor."""
    position = {} if ingested is None else {name: t for t, name in enumerate(ingested.names)}
    return [
        table if ingested is None or table.name not in position else _merged(table, ingested, position[table.name])
        for table in listed
    ]


def _merged(table: ModelTable, ingested: Tables, t: int) -> ModelTable:
    pooling = float(ingested.pooling_factor[t])
    same_size = (table.rows, padded_dim(table.dim)) == (int(ingested.rows[t]), int(ingested.dim[t]))
    given = pooling if table.pooling_factor is None else table.pooling_factor
    if not same_size or not math.isclose(given, pooling, rel_tol=_SAME_POOLING):
        return table
    return replace(
        table,
        pooling_factor=given,
        lookups=int(ingested.lookups[t]) if table.lookups is None else table.lookups,
        unique_rows=int(ingested.unique_rows[t]) if table.unique_rows is None else table.unique_rows,
        bins=tuple(ingested.bins[t].tolist()) if table.bins is None else table.bins,
    )


_TABLE = TypeAdapter(ModelTable)


def _parsed(where: str, record: Mapping[str, Any]) -> ModelTable:
    """One record as a row; empty values are missing ones, and a table's only feature is called as it is by default."""
    given = {key: value for key, value in record.items() if value is not None and str(value).strip()}
    bins = [given.pop(column, None) for column in _BINS]
    if any(share is not None for share in bins):
        given["bins"] = bins
    given["features"] = given.get("features") or (str(given.get("name", "")),)
    with reading(where, "is wrong", "correct that value"):
        return _TABLE.validate_python(given)


def _check_columns(columns: Iterable[str], where: str) -> None:
    """Refuse a list that lacks a column."""
    if missing := [column for column in ("name", "rows", "dim") if column not in columns]:
        raise InputError(f"{where} has no {', '.join(missing)} (it has {brief(list(columns))}); add what is missing")


def _renamed(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _OTHER_NAMES.get(key, key) for key in record}
    return {key if found[key] in record else found[key]: value for key, value in record.items()}


def _csv_records(file: Path) -> list[Record]:
    with reading(file, "is not a CSV text file", "so its tables are unknown; export the table list as UTF-8 CSV"):
        reader = csv.DictReader(io.StringIO(file.read_bytes().decode("utf-8-sig"), newline=""), strict=True)
        records: list[Record] = [(f"{file}, line {reader.line_num}", record) for record in reader]
        header = reader.fieldnames or []
        _check_columns(_renamed(dict.fromkeys(header)), str(file))
        if len(set(header)) < len(header):
            raise InputError(f"{file} has a column twice among {brief(header)}; remove or rename one")
    for where, record in records:
        if None in record or None in record.values():
            raise InputError(f"{where} does not have the {len(header)} fields of the header; correct that line")
    return records


def _parquet_records(file: Path) -> list[Record]:
    with reading(file, "cannot be read as Parquet", "so its tables are unknown; write it again"):
        _check_columns(_renamed(dict.fromkeys(pq.read_schema(file).names)), str(file))
        return [(f"{file}, row {i + 1}", record) for i, record in enumerate(pq.read_table(file).to_pylist())]


def _json_records(file: Path) -> list[Record]:
    advice = "so no tables can be read from it; write a list of EmbeddingBagConfig fields"
    content = json_content(file.read_bytes(), file, "is not JSON", advice)
    if isinstance(content, dict) and isinstance(content.get("tables"), list):
        content = content["tables"]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise InputError(
            f"{file} is not a list of objects; convert it to "
            '[{"name": ..., "num_embeddings": ..., "embedding_dim": ..., "feature_names": [...]}, ...]'
        )
    return [(f"{file}, table {i + 1}", entry) for i, entry in enumerate(content)]


def _fill(table: ModelTable, defaults: Tables | None) -> ModelTable:
    batch, pooling, lookups = DEFAULT_BATCH, table.pooling_factor, table.lookups
    if defaults is not None and float(defaults.pooling_factor.sum()):
        batch = max(1, round(float(defaults.lookups.sum() / defaults.pooling_factor.sum())))
    if pooling is None:
        pooling = 1.0 if lookups is None else lookups / batch
    if lookups is None:
        lookups = round(pooling * batch)
    unique, bins = table.unique_rows, table.bins
    if unique is None or bins is None:
        default_unique, default_bins = _reuse(table.rows, lookups, defaults)
        unique, bins = default_unique if unique is None else unique, bins or default_bins
    return replace(
        table,
        dim=padded_dim(table.dim),
        pooling_factor=pooling,
        lookups=lookups,
        unique_rows=min(unique, lookups),
        bins=bins,
    )


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
