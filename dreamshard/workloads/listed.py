"""Lists of tables as people and programs write them: CSV, Parquet, and TorchRec-style JSON; read and checked.

Filling in what a list does not say is `csv.py`'s business.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.tables import NUM_BINS

BIN_COLUMNS = tuple(f"bin_{i}" for i in range(NUM_BINS))


@dataclass(frozen=True)
class ListedTable:
    """One table as a file lists it; None where the file does not say.

    Attributes:
        name: of the table.
        rows: hash size.
        dim: embedding dimension.
        pooling_factor: mean lookups per sample.
        lookups: in a batch.
        unique_rows: distinct rows looked up in a batch.
        bins: 17 shares of the distinct rows by access count.
    """

    name: str
    rows: int
    dim: int
    pooling_factor: float | None = None
    lookups: int | None = None
    unique_rows: int | None = None
    bins: tuple[float, ...] | None = None


def list_tables(path: str | Path) -> list[ListedTable]:
    """What a file of tables says, nothing filled in.

    Args:
        path: a `.csv`, `.parquet` or `.json`, as `dreamshard.workloads.csv.read_tables` describes them.

    Raises:
        ValueError: the file is missing, not of a known kind, or a line of it is wrong; the message names the line.
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


def check_records(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[ListedTable]:
    """Check records of any origin.

    Args:
        records: where each record stands, for messages (`tables.csv, line 3`), and its columns as `list_tables` reads
            them; None and empty strings are missing values.

    Raises:
        ValueError: a record is wrong or a name occurs twice; the message says where.
    """
    tables = [_listed(record, where) for where, record in records]
    seen: dict[str, str] = {}
    for (where, _), table in zip(records, tables, strict=True):
        if table.name in seen:
            raise ValueError(
                f"{where}: table {table.name!r} is also at {seen[table.name]}; a placement names each table, so "
                "rename one of them"
            )
        seen[table.name] = where
    return tables


def _csv_records(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            _require(reader.fieldnames or [], file)
            found: list[tuple[str, Mapping[str, Any]]] = []
            for record in reader:
                where = f"{file}, line {reader.line_num}"
                if None in record or None in record.values():
                    raise ValueError(
                        f"{where} does not have the {len(reader.fieldnames or [])} fields of the header; "
                        "its values would land in the wrong columns, so mend that line"
                    )
                found.append((where, record))
            return found
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV text file ({error}); export the table list as UTF-8 CSV") from error


def _parquet_records(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        table = pq.read_table(file, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} cannot be read as Parquet ({str(error).splitlines()[0][:200]}); it may be truncated, so "
            "write it again"
        ) from error
    _require(table.column_names, file)
    return [(f"{file}, row {i + 1}", record) for i, record in enumerate(table.to_pylist())]


def _json_records(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not JSON ({error}); write a list of EmbeddingBagConfig fields") from error
    if isinstance(content, dict) and isinstance(content.get("tables"), list):
        content = content["tables"]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ValueError(
            f"{file} is not a list of objects, so no tables can be read from it; give "
            '[{"name": ..., "num_embeddings": ..., "embedding_dim": ..., "feature_names": [...]}, ...]'
        )
    renamed = {"num_embeddings": "rows", "embedding_dim": "dim"}
    return [
        (f"{file}, table {i + 1}", {renamed.get(key, key): value for key, value in entry.items()})
        for i, entry in enumerate(content)
    ]


def _require(columns: Sequence[str], file: Path) -> None:
    missing = [column for column in ("name", "rows", "dim") if column not in columns]
    if missing:
        raise ValueError(
            f"{file} has no column {', '.join(missing)} (it has {', '.join(columns) or 'none'}); a list of tables "
            "needs name, rows and dim, and pooling_factor for a sensible prediction"
        )


def _listed(record: Mapping[str, Any], where: str) -> ListedTable:
    """Check one record; every error names its line."""
    name = record.get("name")
    if name is None or not str(name).strip():
        raise ValueError(f"{where}: the table has no name, so a placement cannot name it; fill in `name`")
    rows, dim = _integer(record, "rows", where), _integer(record, "dim", where)
    if rows is None or dim is None:
        raise ValueError(f"{where}: rows or dim of table {name!r} is empty, so its size is unknown; fill both in")
    if rows < 1:
        raise ValueError(f"{where}: rows is {rows}, so nothing can be looked up; give the hash size, at least 1")
    if dim < 1 or dim % 4:
        raise ValueError(f"{where}: dim is {dim}, but the fused operator takes positive multiples of 4; round it up")
    lookups = _integer(record, "lookups", where)
    unique = _integer(record, "unique_rows", where)
    if unique is not None and unique > min(rows, rows if lookups is None else lookups):
        raise ValueError(
            f"{where}: unique_rows is {unique}, more than the table's rows or lookups; count distinct rows of a batch"
        )
    return ListedTable(
        str(name).strip(),
        rows,
        dim,
        _pooling(record, where),
        lookups,
        unique,
        _bins(record, where),
    )


def _pooling(record: Mapping[str, Any], where: str) -> float | None:
    """The pooling factor, or the sum over the features that look the table up, as in `1+30`."""
    given = _number(record, "pooling_factor", where)
    if given is not None or record.get("lookups_per_sample_by_feature") in (None, ""):
        return given
    parts = str(record["lookups_per_sample_by_feature"]).split("+")
    return sum(
        _number({"lookups_per_sample_by_feature": part}, "lookups_per_sample_by_feature", where) or 0.0
        for part in parts
    )


def _bins(record: Mapping[str, Any], where: str) -> tuple[float, ...] | None:
    values = [_number(record, column, where) for column in BIN_COLUMNS]
    given = [value for value in values if value is not None]
    if not given:
        return None
    if len(given) < NUM_BINS:
        missing = [column for column, value in zip(BIN_COLUMNS, values, strict=True) if value is None]
        raise ValueError(f"{where}: {', '.join(missing)} missing; give all of bin_0 to bin_16 or none of them")
    if abs(sum(given) - 1) > 0.01 and sum(given) > 0:
        raise ValueError(
            f"{where}: bin_0 to bin_16 add up to {sum(given):.4g}; they are shares of the distinct rows, so make "
            "them add up to 1"
        )
    return tuple(given)


def _number(record: Mapping[str, Any], column: str, where: str, kind: str = "a number") -> float | None:
    """A finite number that is not negative, or None where there is none."""
    value = record.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {column} is {value!r}, not {kind}; mend that value") from None
    if not 0 <= number < float("inf"):
        raise ValueError(f"{where}: {column} is {value!r}; it must be {kind}, finite and not negative")
    return number


def _integer(record: Mapping[str, Any], column: str, where: str) -> int | None:
    """A whole number that is not negative, exact however large, or None where there is none."""
    number = _number(record, column, where, "a whole number")
    if number is None:
        return None
    if number != int(number):
        raise ValueError(f"{where}: {column} is {record[column]!r}, not a whole number; mend that value")
    digits = str(record[column]).strip()
    return int(digits) if digits.isdigit() else int(number)
