"""Unreadable Parquet files as one sentence."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dreamshard.files.parquet import parquet_errors, read_columns


@pytest.mark.parametrize("content", [b"", b"not Parquet", None])
def test_an_unreadable_file_is_one_sentence_with_its_name_the_cause_and_advice(tmp_path: Path, content: bytes | None):
    file = tmp_path / "lookups.parquet"
    if content is not None:
        file.write_bytes(content)
    with (
        pytest.raises(
            ValueError, match=r"lookups\.parquet cannot be read as Parquet \(.+\), so write it again"
        ) as raised,
        parquet_errors(file, "so write it again"),
    ):
        pq.read_table(file)
    assert "\n" not in str(raised.value)


def test_an_interrupt_in_the_block_passes_unchanged():
    with pytest.raises(KeyboardInterrupt), parquet_errors("file", "advice"):
        raise KeyboardInterrupt


def test_a_file_that_claims_more_rows_than_are_read_is_refused_before_they_are_made(tmp_path: Path):
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet claims 3 rows, where at most 2 are read, so cut it"):
        read_columns(tmp_path / "t.parquet", None, "so cut it", most_rows=2)


def test_a_footer_with_damaged_statistics_is_refused_and_does_not_end_the_process(tmp_path: Path):
    pq.write_table(pa.table({"indices": pa.array([[1, 2], [3]])}), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    code = """
import sys
from dreamshard.files.parquet import read_columns
for at in range(int(sys.argv[2]), int(sys.argv[3])):
    content = bytearray(open(sys.argv[1], "rb").read())
    content[at] ^= 1 << at % 8
    with open(sys.argv[1] + ".damaged", "wb") as file:
        file.write(content)
    try:
        read_columns(sys.argv[1] + ".damaged", None, "so write it again")
    except ValueError:
        pass
"""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    words = [sys.executable, "-c", code, str(tmp_path / "t.parquet"), str(footer), str(len(content))]
    subprocess.run(words, check=True)
