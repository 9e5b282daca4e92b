"""Parquet files that appear whole or not at all, and one clear error for those that cannot be read."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.files.digests import json_digest
from storage import filesystem
from storage.filesystem import Place, writing

ROWS_PER_GROUP = 122_880
"""What DuckDB hands to one thread at a time: a third faster here than pyarrow's million."""


def write(target: Place, table: pa.Table) -> None:
    """Write `table` to `target`, which appears whole or not at all."""
    with writing(target) as file:
        pq.write_table(
            table, file, compression="zstd", row_group_size=ROWS_PER_GROUP, use_dictionary=_texts(table.schema)
        )


def read(source: Place, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one file of the lake.

    Raises:
        ValueError: it cannot be read, or lacks a column; the message names the file.
    """
    try:
        return _parsed(source if isinstance(source, Path) else pa.BufferReader(source.read_bytes()), columns)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(source, error) from error


def read_all(sources: Sequence[Place], columns: Sequence[str] | None = None) -> list[pa.Table]:
    """Read many files of the lake, those from elsewhere at the same time; one that has gone since it was listed is left out.

    Raises:
        ValueError: one cannot be read, or lacks a column; the message names the file.
    """
    found = []
    for source, content in _contents(sources):
        try:
            found.append(_parsed(content, columns))
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(source, error) from error
    return found


def _contents(sources: Sequence[Place]) -> Iterator[tuple[Place, Any]]:
    """Each file with what pyarrow reads: its path, or its content if it lies elsewhere and is still there."""
    if all(isinstance(source, Path) for source in sources):
        yield from ((source, source) for source in sources)
        return
    for source, content in zip(sources, filesystem.read_all(sources), strict=True):
        if content is not None:
            yield source, pa.BufferReader(content)


def _parsed(source: Any, columns: Sequence[str] | None) -> pa.Table:
    return pq.read_table(source, columns=None if columns is None else list(columns), partitioning=None)


def _unreadable(source: Place, error: BaseException) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return ValueError(
        f"{source} cannot be read as Parquet ({reason}), so what it holds is lost to this run; it may be truncated "
        "or of another origin: remove it and run the stage that writes it again"
    )


def _texts(schema: pa.Schema) -> list[str]:
    """Columns that repeat themselves; a dictionary of measured numbers makes files a quarter larger and slower."""
    plain = [field.name for field in schema if field.type == pa.string()]
    return plain + [f"{field.name}.list.element" for field in schema if field.type == pa.list_(pa.string())]


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Let one writer at a time, of any process of this machine, change what it has read; readers do not wait."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the process, however that ends
        yield
    finally:
        os.close(handle)


def partition(root: Place, **values: str) -> Place:
    """`root/name=value/...`, with everything but letters, digits and `_.-~` escaped."""
    for name, value in values.items():
        root = root / f"{name}={quote(value, safe='')}"
    return root


def content_id(content: Any) -> str:
    """Sixteen hexadecimal digits of anything that JSON can hold."""
    return json_digest(content, sort_keys=True, separators=(",", ":"))
