"""Lists of tables as people and programs write them: CSV, Parquet, and TorchRec-style JSON; read and checked.

`tables_file.py` fills in what a list leaves out.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamshard.files.bounds import MOST_COLUMNS, MOST_COUNT, MOST_POOLING, MOST_ROWS, MOST_WEIGHTS
from dreamshard.files.foreign import InputError, brief, file_bytes, json_content, reading
from dreamshard.files.parquet import read_columns
from dreamshard.tables import DIM_MULTIPLE, NUM_BINS

BIN_COLUMNS = tuple(f"bin_{i}" for i in range(NUM_BINS))

_BY_FEATURE = "lookups_per_sample_by_feature"
_COLUMNS = ("name", "rows", "dim", "pooling_factor", _BY_FEATURE, "lookups", "unique_rows", *BIN_COLUMNS)
_MOST = {"rows": MOST_ROWS, "dim": MOST_COLUMNS, "lookups": MOST_COUNT, "unique_rows": MOST_COUNT}

_JSON_NAMES = {"num_embeddings": "rows", "embedding_dim": "dim"}
"""TorchRec's names for columns."""

Record = tuple[str, Mapping[str, Any]]
"""Position of a record for messages (`tables.csv, line 3`), and its columns; None and empty strings are missing values."""


@dataclass(frozen=True)
class ListedTable:
    """One table of a list, with columns as in `Tables`; None where the list gives no value."""

    name: str
    rows: int
    dim: int
    pooling_factor: float | None = None
    lookups: int | None = None
    unique_rows: int | None = None
    bins: tuple[float, ...] | None = None


def list_tables(path: str | Path) -> list[ListedTable]:
    """Read a list of tables in a format of `read_tables`, with nothing filled in.

    Raises:
        ValueError: the file is missing, of an unknown kind, or has a wrong line, which the message names.
    """
    file = Path(path)
    readers = {".csv": _csv_records, ".parquet": _parquet_records, ".json": _json_records}
    if file.suffix not in readers:
        raise ValueError(
            f"{file} is not a list of tables that can be read, judging by its name; give a .csv or .parquet with "
            "columns name, rows, dim, pooling_factor, or a TorchRec-style .json"
        )
    if not file.is_file():
        raise ValueError(f"there is no file {file}, so there are no tables to read; check the path")
    records = readers[file.suffix](file)
    if not records:
        raise ValueError(f"{file} lists no tables, so there is nothing to place; add one line per table")
    return check_records(records)


def unused_fields(path: Path) -> list[str]:
    """Fields of a JSON list that say more of a table than its size and lookups; none of other lists.

    Raises:
        ValueError: the file is not a JSON list of objects.
    """
    used = {*_JSON_NAMES, *_COLUMNS}
    entries = json_objects(path) if path.suffix == ".json" else []
    return sorted({field for entry in entries for field in entry} - used)


def check_records(records: Sequence[Record]) -> list[ListedTable]:
    """Check records from any origin.

    Raises:
        ValueError: a record is wrong or a name occurs twice, of which the message names the position; or all tables together
            are too large to be counted.
    """
    tables: list[ListedTable] = []
    first_at: dict[str, str] = {}
    for where, record in records:
        tables.append(_check_record(where, record))
        name = tables[-1].name
        if first_at.setdefault(name, where) != where:
            raise ValueError(
                f"{where}: table {name!r} is also at {first_at[name]}; a placement names each table, so rename one of them"
            )
    weights = sum(table.rows * table.dim for table in tables)
    if weights > MOST_WEIGHTS:
        where = records[0][0].partition(",")[0]
        raise ValueError(
            f"{where}: the tables have {weights:.3g} weights together, more than any cluster holds; correct rows and dims"
        )
    return tables


def _csv_records(file: Path) -> list[Record]:
    records: list[Record] = []
    problem, advice = "is not a CSV text file", "so its tables are unknown; export the table list as UTF-8 CSV"
    content = file_bytes(file, problem, advice)
    with reading(file, problem, advice):
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        reader = csv.DictReader(text, strict=True)
        header = reader.fieldnames or []
        _require_columns(header, file)
        if repeated := [column for column in _COLUMNS if header.count(column) > 1]:
            raise InputError(
                f"{file} has {header.count(repeated[0])} columns {repeated[0]}, so it is unknown which one is meant; remove "
                "or rename the others"
            )
        for record in reader:
            where = f"{file}, line {reader.line_num}"
            if None in record or None in record.values():
                raise InputError(
                    f"{where} does not have the {len(header)} fields of the header, so its values would be read "
                    "as the wrong columns; correct that line"
                )
            records.append((where, record))
    return records


def _parquet_records(file: Path) -> list[Record]:
    advice = "so its tables are unknown; it may be truncated: write it again"
    table = read_columns(file, _COLUMNS, advice)
    _require_columns(table.column_names, file)
    with reading(file, "cannot be read as Parquet", advice):
        return [(f"{file}, row {i + 1}", record) for i, record in enumerate(table.to_pylist())]


def json_objects(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON list, or of the list `tables` in a JSON object.

    Raises:
        ValueError: the file is not such JSON.
    """
    problem, advice = "is not JSON", "so no tables can be read from it; write a list of EmbeddingBagConfig fields"
    content = json_content(file_bytes(file, problem, advice), file, problem, advice)
    if isinstance(content, dict) and isinstance(content.get("tables"), list):
        content = content["tables"]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ValueError(
            f"{file} is not a list of objects, so no tables can be read from it; give "
            '[{"name": ..., "num_embeddings": ..., "embedding_dim": ..., "feature_names": [...]}, ...]'
        )
    return content


def _json_records(file: Path) -> list[Record]:
    return [
        (f"{file}, table {i + 1}", {_JSON_NAMES.get(key, key): value for key, value in entry.items()})
        for i, entry in enumerate(json_objects(file))
    ]


def _require_columns(columns: Sequence[str], file: Path) -> None:
    missing = [column for column in ("name", "rows", "dim") if column not in columns]
    if missing:
        raise InputError(
            f"{file} has no column {', '.join(missing)} (it has {brief(list(columns))}); a list of tables "
            "needs name, rows and dim, and pooling_factor for a sensible prediction"
        )


def _check_record(where: str, record: Mapping[str, Any]) -> ListedTable:
    name = _name(where, record.get("name"))
    rows, dim = _integer(record, "rows", where), _integer(record, "dim", where)
    if rows is None or dim is None:
        raise ValueError(f"{where}: rows or dim of table {name!r} is empty, so its size is unknown; fill both in")
    if rows < 1:
        raise ValueError(f"{where}: rows is {rows}, so nothing can be looked up; give the hash size, at least 1")
    if dim < 1 or dim % DIM_MULTIPLE:
        raise ValueError(
            f"{where}: dim is {dim}, but the fused operator takes positive multiples of {DIM_MULTIPLE}; round it up"
        )
    lookups, unique = _integer(record, "lookups", where), _integer(record, "unique_rows", where)
    if unique is not None and unique > min(rows, rows if lookups is None else lookups):
        raise ValueError(
            f"{where}: unique_rows is {unique}, more than the table's rows or lookups; count distinct rows of a batch"
        )
    return ListedTable(name, rows, dim, _pooling(record, where), lookups, unique, _bins(record, where))


def _name(where: str, value: object) -> str:
    """The table's name, which plans, file names and terminals show."""
    name = str(value).strip() if isinstance(value, str | int | float) else ""
    if not name:
        raise ValueError(f"{where}: the table has no name, so a placement cannot name it; fill in `name`")
    if not name.isprintable():
        raise ValueError(f"{where}: the name {brief(name)} has characters that terminals cannot show; rename the table")
    return name


def _pooling(record: Mapping[str, Any], where: str) -> float | None:
    """The pooling factor, or the sum over the features that look the table up, as in `1+30`."""
    pooling = _number(record, "pooling_factor", where)
    if pooling is None and record.get(_BY_FEATURE) not in (None, ""):
        parts = str(record[_BY_FEATURE]).split("+")
        pooling = sum(_number({_BY_FEATURE: part}, _BY_FEATURE, where) or 0.0 for part in parts)
    if pooling is not None and pooling > MOST_POOLING:
        raise ValueError(
            f"{where}: {pooling:.3g} lookups per sample are more than the {MOST_POOLING:,.0f} that any feature has; correct "
            "pooling_factor"
        )
    return pooling


def _bins(record: Mapping[str, Any], where: str) -> tuple[float, ...] | None:
    values = {column: _number(record, column, where) for column in BIN_COLUMNS}
    missing = [column for column, value in values.items() if value is None]
    bins = tuple(value for value in values.values() if value is not None)
    if not bins:
        return None
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing; give all of bin_0 to bin_16 or none of them")
    if abs(sum(bins) - 1) > 0.01 and sum(bins) > 0:
        raise ValueError(
            f"{where}: bin_0 to bin_16 add up to {sum(bins):.4g}, but they are shares of the distinct rows; make them "
            "add up to 1"
        )
    return bins


def _number(record: Mapping[str, Any], column: str, where: str, kind: str = "a number") -> float | None:
    """A finite number that is not negative, or None if the value is missing."""
    value = record.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float("nan") if isinstance(value, bool | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if number != number:
        raise ValueError(f"{where}: {column} is {brief(value)}, not {kind}; correct that value")
    if not 0 <= number < float("inf"):
        raise ValueError(f"{where}: {column} is {brief(value)}; it must be {kind}, finite and not negative")
    return number


def _integer(record: Mapping[str, Any], column: str, where: str) -> int | None:
    """A whole number that is not negative, exact at any size, or None if the value is missing."""
    number = _number(record, column, where, "a whole number")
    if number is None:
        return None
    if number != int(number):
        raise ValueError(f"{where}: {column} is {brief(record[column])}, not a whole number; correct that value")
    digits = str(record[column]).strip()
    exact = int(digits) if digits.isdecimal() else int(number)
    if exact > _MOST[column]:
        raise ValueError(
            f"{where}: {column} is {brief(record[column])}, more than the {_MOST[column]:,} that can be placed; correct it"
        )
    return exact
