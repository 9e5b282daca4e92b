"""Parquet files: the columns of each dataset, files that appear completely or not at all, an error if one cannot be read.

Fewer files for queries to open: a compacted file repeats the rows of many small ones.

    compacted/<dataset>/<content>.parquet    rows of 64 files or more, with the columns of their folders

The files stay, and everything but queries reads them, so a killed writer or a removed compacted file loses nothing. A
compacted file lists its sources with their sizes and times. It counts only while all of them are unchanged and in no other
one, as two hosts may compact at once; otherwise queries read the sources until `compact` replaces it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.files import json_digest
from storage.filesystem import AnyPath, FileInfo, list_file_infos, list_files, read_files, remove, writing

DECLARED = Path(__file__).with_name("datasets.sql").read_text(encoding="utf-8")
"""Creates an empty table with the columns of each dataset, in the schema `empty`."""

HIVE_COLUMNS = ("dataset_version", "split", "testbed", "links")
"""Columns that folders are named by; files in them do not hold these."""

_ROWS_PER_GROUP = 122_880  # DuckDB hands one group to a thread: a third faster than with pyarrow's default of a million


@cache
def datasets() -> dict[str, pa.Schema]:
    """Columns of the datasets, by the names of their folders."""
    import duckdb  # only writers and queries need it

    with duckdb.connect() as connection:
        connection.execute(DECLARED)
        names = connection.sql("select table_name from duckdb_tables()").fetchall()
        return {name: connection.table(f"empty.{name}").to_arrow_table().schema for (name,) in names}


def write_parquet(target: AnyPath, table: pa.Table) -> None:
    """Write `table`, without the columns of its Hive folders, to `target`, which appears completely or not at all."""
    table = table.drop_columns([name for name in hive_values(target) if name in table.column_names])
    with writing(target) as file:
        pq.write_table(
            table, file, compression="zstd", row_group_size=_ROWS_PER_GROUP, use_dictionary=_texts(table.schema)
        )


def write_rows(target: AnyPath, dataset: str, rows: list[dict[str, Any]]) -> None:
    """`write_parquet` for rows of a dataset; missing columns are null."""
    write_parquet(target, pa.Table.from_pylist(rows, schema=datasets()[dataset]))


def read_parquet(source: AnyPath) -> pa.Table:
    """Read one file of the lake.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read; the message names the file.
    """
    tables = read_parquet_files([source])
    if not tables:
        raise FileNotFoundError(f"there is no {source}")
    return tables[0]


def read_parquet_files(sources: Sequence[AnyPath]) -> list[pa.Table]:
    """Read many files, remote ones in parallel, with the columns that their folders are named by.

    Files that were removed since they were listed are skipped.

    Raises:
        ValueError: one cannot be read; the message names the file.
    """
    tables = []
    for source, content in zip(sources, read_files(sources), strict=True):
        if content is None:
            continue
        try:
            # threads would abort a process that ends soon after (apache/arrow 39862)
            table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{source} cannot be read as Parquet ({error}); remove it and run the stage that writes it again"
            ) from error
        for name, value in hive_values(source).items():
            table = table.append_column(name, pa.array([value] * len(table), pa.string()))
        tables.append(table)
    return tables


def _texts(schema: pa.Schema) -> list[str]:
    """Columns that repeat values; dictionaries of measured numbers make files a quarter larger and slower."""
    plain = [field.name for field in schema if field.type == pa.string()]
    return plain + [f"{field.name}.list.element" for field in schema if field.type == pa.list_(pa.string())]


def hive_folder(root: AnyPath, **values: str) -> AnyPath:
    """`root/name=value/...`, with everything but letters, digits and `_.-~` of a value escaped."""
    return root.joinpath(*(f"{name}={quote(value, safe='')}" for name, value in values.items()))


def hive_values(file: AnyPath) -> dict[str, str]:
    """The columns that the folders of a file are named by."""
    pairs = (part.partition("=") for part in file.parts[:-1])
    return {name: unquote(value) for name, _, value in pairs if name in HIVE_COLUMNS}


def content_id(content: Any) -> str:
    """Sixteen hexadecimal digits that identify anything JSON can hold."""
    return json_digest(content, sort_keys=True, separators=(",", ":"))


_FEWEST = 64  # sources of a compacted file
_SMALL_BYTES = 2**18  # larger files take longer to read than to open


def parts(root: AnyPath, dataset: str) -> tuple[list[AnyPath], dict[str, FileInfo]]:
    """Compacted files that count, and the dataset's files that they do not repeat, by path, size and time."""
    others = {
        f"{str(info.path).removeprefix(str(root))} {info.size_bytes} {info.modified}": info
        for info in list_file_infos(root / dataset, "**/*.parquet")
    }
    counted = []
    for path in list_files(root / "compacted" / dataset, "*.parquet"):
        with suppress(FileNotFoundError, pa.ArrowInvalid), path.open("rb") as file:  # removed since, or damaged
            sources = json.loads(pq.read_schema(file).metadata[b"sources"])
            if others.keys() >= set(sources):
                counted.append(path)
                for source in sources:
                    del others[source]
    return counted, others


def compact(root: AnyPath) -> None:
    """Compact the small files of each dataset, once there are enough, and remove compacted files that do not count."""
    for dataset, schema in datasets().items():
        counted, others = parts(root, dataset)
        remove(path for path in list_files(root / "compacted" / dataset, "*.parquet") if path not in counted)
        sources = [source for source, info in others.items() if info.size_bytes < _SMALL_BYTES]
        if len(sources) >= _FEWEST:
            tables = [schema.empty_table(), *read_parquet_files([others[source].path for source in sources])]
            rows = pa.concat_tables(tables, promote_options="default").select(schema.names)
            target = root / "compacted" / dataset / f"{content_id(sources)}.parquet"
            write_parquet(target, rows.replace_schema_metadata({"sources": json.dumps(sources)}))
