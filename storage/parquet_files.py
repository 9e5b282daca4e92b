"""Parquet files that appear whole or not at all, and one clear error for those that cannot be read."""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 122_880
"""What DuckDB hands to one thread at a time: a third faster here than pyarrow's million."""


def write(path: Path, table: pa.Table) -> None:
    """Write `table` to `path`: temporary name, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(
                table, file, compression="zstd", row_group_size=ROWS_PER_GROUP, use_dictionary=_texts(table.schema)
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the rename itself outlives a power cut
    finally:
        os.close(folder)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one file of the lake.

    Raises:
        ValueError: it cannot be read, or lacks a column; the message names the file.
    """
    try:
        return pq.read_table(path, columns=None if columns is None else list(columns), partitioning=None)
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ValueError(
            f"{path} cannot be read as Parquet ({reason}), so what it holds is lost to this run; it may be truncated "
            "or of another origin: remove it and run the stage that writes it again"
        ) from error


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


def partition(root: Path, **values: str) -> Path:
    """`root/name=value/...`, with everything but letters, digits and `_.-~` escaped."""
    for name, value in values.items():
        root = root / f"{name}={quote(value, safe='')}"
    return root


def content_id(content: Any) -> str:
    """Sixteen hexadecimal digits of anything that JSON can hold."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
