"""One sentence for Parquet files that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from dreamshard.formatting import first_line


@contextmanager
def parquet_errors(source: object, advice: str) -> Iterator[None]:
    """Raise errors of Arrow and of the file system in the block as one ValueError.

    Args:
        source: the file, for the message.
        advice: why it matters, and what to do.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{source} cannot be read as Parquet ({first_line(error)}), {advice}") from error
