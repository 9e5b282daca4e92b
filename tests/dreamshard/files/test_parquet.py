"""Unreadable Parquet files as one sentence."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dreamshard.files.parquet import parquet_errors


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


def test_other_errors_in_the_block_pass_unchanged():
    with pytest.raises(KeyError), parquet_errors("file", "advice"):
        raise KeyError("name")
