"""Parquet files that appear completely or not at all, and one clear error for those that cannot be read."""

import errno
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from dreamshard.files.digests import json_digest
from dreamshard.files.foreign import reading
from dreamshard.files.parquet import parquet_errors
from storage.filesystem import AnyPath, read_files, writing

_ROWS_PER_GROUP = 122_880  # DuckDB hands one group to a thread: a third faster than with pyarrow's default of a million

_FORMER = re.compile(r"^\w+=")  # values have no `=` in them, since it is escaped

_ADVICE = (
    "so this run cannot use its content; it may be truncated or come from another program: remove it and run the stage "
    "that writes it again"
)


def write_parquet(target: AnyPath, table: pa.Table) -> None:
    """Write `table` to `target`, which appears completely or not at all; its pages have checksums."""
    with writing(target) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            row_group_size=_ROWS_PER_GROUP,
            use_dictionary=_texts(table.schema),
            write_page_checksum=True,
        )


def write_rows(target: AnyPath, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """`write_parquet` for rows of `schema`; missing columns are null."""
    write_parquet(target, pa.Table.from_pylist(rows, schema=schema))


def read_parquet(source: AnyPath, columns: list[str] | None = None, *, advice: str = _ADVICE) -> pa.Table:
    """Read one file of the lake.

    Args:
        columns: those to read; None for all.
        advice: what the message says of why it matters, and what to do.

    Raises:
        ValueError: it cannot be read, or lacks a column; the message names the file.
    """
    with parquet_errors(source, advice):
        content = source if isinstance(source, Path) else pa.BufferReader(_content(source))
        return _table(content, columns)


def _table(content: Any, columns: list[str] | None, wanted: pc.Expression | None = None) -> pa.Table:
    """A file's rows; Arrow raises an error where a page is not what its checksum says, or a text is no UTF-8."""
    table = pq.read_table(content, columns=columns, filters=wanted, partitioning=None, page_checksum_verification=True)
    table.validate(full=True)
    return table


def _content(source: AnyPath) -> bytes:
    """The bytes of a remote file; read again if another writer replaced it meanwhile, as ingests of the same tables do."""
    try:
        return source.read_bytes()
    except OSError as error:
        if error.errno != errno.EBUSY:  # which fsspec raises for a file that is no longer the one that was opened
            raise
        return source.read_bytes()


def read_parquet_files(
    sources: Sequence[AnyPath], columns: list[str] | None = None, wanted: pc.Expression | None = None
) -> list[pa.Table]:
    """Read many files, remote ones in parallel; those removed since they were listed are skipped.

    Args:
        wanted: condition on the rows; None for all.

    Raises:
        ValueError: one cannot be read, or lacks a column; the message names the file.
    """
    contents: Sequence[Any] = sources
    if not all(isinstance(source, Path) for source in sources):
        contents = [None if content is None else pa.BufferReader(content) for content in read_files(sources)]
    tables = []
    for source, content in zip(sources, contents, strict=True):
        if content is not None:
            with parquet_errors(source, _ADVICE), suppress(FileNotFoundError):
                tables.append(_table(content, columns, wanted))
    return tables


def interpreting(source: AnyPath, advice: str = _ADVICE) -> AbstractContextManager[None]:
    """Raise whatever the content of a readable file makes a library raise in the block as one ValueError.

    Args:
        source: the file, or the folder of those that are interpreted together.
        advice: why it matters, and what to do.
    """
    return reading(source, "does not hold what dreamshard writes there", advice)


def check_footers(sources: Sequence[AnyPath]) -> None:
    """Check that files are Parquet, by what is at their ends.

    Raises:
        ValueError: one is not, or is damaged there; the message names the file.
    """
    for source in sources:
        with parquet_errors(source, _ADVICE), suppress(FileNotFoundError):
            pq.read_metadata(source if isinstance(source, Path) else pa.BufferReader(_content(source)))


def _texts(schema: pa.Schema) -> list[str]:
    """Columns that repeat values; dictionaries of measured numbers make files a quarter larger and slower."""
    plain = [field.name for field in schema if field.type == pa.string()]
    return plain + [f"{field.name}.list.element" for field in schema if field.type == pa.list_(pa.string())]


def partition(root: AnyPath, **values: str) -> AnyPath:
    """`root/value/...`, with everything but letters, digits and `_.-~` escaped, and a `_` or `.` at the beginning.

    The files have these columns themselves. Folders called `name=value`, as earlier releases did, would give readers each
    column a second time and perhaps as a number, so a new folder has the value alone; where the old one exists, it is used
    (`relocation.former_folders` renames those of a home).
    """
    for name, value in values.items():
        escaped = quote(value, safe="")
        former = root / f"{name}={escaped}"
        root = former if _exists(former) else root / visible(escaped)
    return root


def partition_value(folder: AnyPath) -> str:
    """The value that a folder of `partition` is named by."""
    return unquote(_FORMER.sub("", folder.name))


def _exists(folder: AnyPath) -> bool:
    """Whether a folder that only earlier releases make is there; a store is asked once per process."""
    return folder.is_dir() if isinstance(folder, Path) else _exists_remotely(folder)


@cache
def _exists_remotely(folder: UPath) -> bool:
    return bool(folder.exists())


def visible(name: str) -> str:
    """A folder's name without a `_` or `.` at the beginning, since readers skip such folders."""
    return f"%{ord(name[0]):02X}{name[1:]}" if name[:1] in ("_", ".") else name


def content_id(content: Any) -> str:
    """Sixteen hexadecimal digits that identify anything JSON can hold."""
    return json_digest(content, sort_keys=True, separators=(",", ":"))
