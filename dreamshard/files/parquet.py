"""Parquet files of other people, and one sentence for those that cannot be read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.files.foreign import reading


@contextmanager
def parquet_errors(source: object, advice: str) -> Iterator[None]:
    """Raise whatever a damaged file makes Arrow raise in the block as one `InputError`.

    Args:
        source: the file, for the message.
        advice: why it matters, and what to do.
    """
    with reading(source, "cannot be read as Parquet", advice):
        yield


def read_columns(file: str | Path, columns: Sequence[str] | None, advice: str) -> pa.Table:
    """Columns of a Parquet file, or all; columns that the file lacks are left out.

    Args:
        file: to read.
        columns: names; None for all.
        advice: as for `parquet_errors`.

    Raises:
        ValueError: it is no Parquet file, or is damaged.
    """
    with parquet_errors(file, advice), pq.ParquetFile(str(file)) as opened:
        return opened.read([name for name in opened.schema_arrow.names if columns is None or name in columns])


def num_rows(file: str | Path, advice: str) -> int:
    """Rows of a Parquet file; raises like `read_columns`."""
    with parquet_errors(file, advice):
        return int(pq.read_metadata(file).num_rows)
