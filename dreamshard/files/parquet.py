"""Parquet files that others wrote, within bounds, and one sentence for those that cannot be read.

What a file says of itself is checked before anything of that size is made: a footer of a kilobyte can claim any number of
values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.files.bounds import MOST_LOOKUPS
from dreamshard.files.foreign import InputError, reading

_MOST_COLUMNS = 10_000
_MOST_ROW_GROUPS = 100_000
_VALUES_PER_BYTE = 20_000  # of a file: writers start a page of some ten bytes at least every 20,000 rows
_STRING_BYTES, _CONTAINER_ITEMS = 2**26, 2**20  # of a footer


@contextmanager
def parquet_errors(source: object, advice: str) -> Iterator[None]:
    """Raise whatever a damaged file makes Arrow raise in the block as one `InputError`.

    Args:
        source: the file, for the message.
        advice: why it matters, and what to do.
    """
    with reading(source, "cannot be read as Parquet", advice):
        yield


def read_columns(
    file: str | Path,
    columns: Sequence[str] | None,
    advice: str,
    *,
    most_rows: int = MOST_LOOKUPS,
    memory_map: bool = False,
) -> pa.Table:
    """Columns of a Parquet file, or all of them; those that it lacks are left out.

    Args:
        file: to read.
        columns: top-level columns; others are not read. None for all.
        advice: as for `parquet_errors`.
        most_rows: that the file may have.
        memory_map: leave what is not compressed on disk until it is used.

    Raises:
        ValueError: it is no Parquet file, is damaged, or has too many rows.
    """
    with parquet_errors(file, advice), _opened(file, advice, most_rows, memory_map=memory_map) as opened:
        names = opened.schema_arrow.names
        wanted = None if columns is None else [name for name in names if name in columns]
        return opened.read(wanted)


def num_rows(file: str | Path, advice: str) -> int:
    """Rows of a Parquet file; raises like `read_columns`."""
    with parquet_errors(file, advice), _opened(file, advice, MOST_LOOKUPS) as opened:
        return int(opened.metadata.num_rows)


def _opened(file: str | Path, advice: str, most_rows: int, *, memory_map: bool = False) -> pq.ParquetFile:
    """The file, its footer checked."""
    opened = pq.ParquetFile(
        str(file),
        memory_map=memory_map,
        thrift_string_size_limit=_STRING_BYTES,
        thrift_container_size_limit=_CONTAINER_ITEMS,
    )
    about, size = opened.metadata, Path(file).stat().st_size
    for count, most, what in (
        (about.num_rows, most_rows, "rows"),
        (about.num_columns, _MOST_COLUMNS, "columns"),
        (about.num_row_groups, _MOST_ROW_GROUPS, "row groups"),
    ):
        if not 0 <= count <= most:
            raise InputError(f"{file} claims {count:,} {what}, where at most {most:,} are read, {advice}")
    # Not `about.row_group(0).column(0)`: Arrow ends the process where the statistics there are damaged.
    claimed = about.num_rows * about.num_columns
    if claimed > _VALUES_PER_BYTE * size:
        raise InputError(
            f"{file} claims {claimed:,} values, which {size:,} bytes cannot hold, so it is damaged, {advice}"
        )
    return opened
