"""A remote file that another writer replaces while it is read."""

import errno

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.lake.parquet_files import read_parquet


class Replaced:
    """A remote file whose first reads fail as fsspec's do when the file is replaced."""

    def __init__(self, content: bytes, failures: int) -> None:
        self.content, self.failures = content, failures

    def read_bytes(self) -> bytes:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EBUSY, "the remote file no longer exists")
        return self.content


def test_a_file_that_is_replaced_while_it_is_read_is_read_again_once(tmp_path):
    path = tmp_path / "tables.parquet"
    pq.write_table(pa.table({"rows": [1, 2]}), path)
    assert read_parquet(Replaced(path.read_bytes(), 1)).num_rows == 2
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_parquet(Replaced(path.read_bytes(), 2))
