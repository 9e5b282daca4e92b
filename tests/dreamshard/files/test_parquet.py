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
        read_columns(sys.argv[1] + ".damaged", None, "so write it again", most_rows=9, lists=True)
    except ValueError:
        pass
"""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    words = [sys.executable, "-c", code, str(tmp_path / "t.parquet"), str(footer), str(len(content))]
    subprocess.run(words, check=True)


REFUSED = "so write it again"


def refused(file: Path, **options: bool) -> str:
    with pytest.raises(ValueError, match=REFUSED) as raised:
        read_columns(file, None, REFUSED, most_rows=100_000, **options)
    return str(raised.value)


def test_a_long_text_that_is_named_often_is_refused_before_it_is_repeated(tmp_path: Path):
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 60_000]))
    pq.write_table(pa.table({"name": repeated}), tmp_path / "t.parquet")
    assert "repeats texts to 6,000,000,000 bytes" in refused(tmp_path / "t.parquet")
    lists = pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), repeated)
    pq.write_table(pa.table({"names": lists}), tmp_path / "t.parquet")
    assert "repeats texts to 6,000,000,000 bytes" in refused(tmp_path / "t.parquet", lists=True)


def test_pages_that_claim_more_than_is_read_are_refused(tmp_path: Path):
    texts = pa.array(["x" * 20_000] * 10_000)
    pq.write_table(pa.table({"name": texts}), tmp_path / "t.parquet", use_dictionary=False, compression="zstd")
    assert "bytes when unpacked, where at most 134,217,728 are read" in refused(tmp_path / "t.parquet")
    nulls = pa.ListArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), pa.nulls(5_000_000, pa.int8()))
    pq.write_table(pa.table({"name": nulls}), tmp_path / "t.parquet")
    assert "claims 5,000,000 values, where at most 4,194,304 are read" in refused(tmp_path / "t.parquet", lists=True)


def test_texts_of_shared_prefixes_are_refused(tmp_path: Path):
    texts = pa.table({"name": ["x" * 1000] * 10})
    pq.write_table(texts, tmp_path / "t.parquet", use_dictionary=False, column_encoding={"name": "DELTA_BYTE_ARRAY"})
    assert "DELTA_BYTE_ARRAY, by which a few bytes make any amount of text" in refused(tmp_path / "t.parquet")


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct({"a": pa.int8()}), pa.binary(), pa.date32()])
def test_a_column_of_a_type_that_no_list_has_is_refused_by_its_name(tmp_path: Path, kind: pa.DataType):
    pq.write_table(pa.table({"name": pa.nulls(3, kind)}), tmp_path / "t.parquet")
    assert (
        f"has the column 'name' of type {str(kind).replace('item', 'element')}, where numbers or texts are read"
        in refused(tmp_path / "t.parquet")
    )


@pytest.mark.parametrize("options", [{}, {"version": "1.0"}, {"data_page_version": "2.0"}, {"use_dictionary": False},
                                     {"compression": "gzip"}, {"data_page_size": 64, "row_group_size": 3}])  # fmt: skip
@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_way_to_write_numbers_texts_and_lists_reads_the_same(
    tmp_path: Path, options: dict[str, object], text: pa.DataType
):
    rows = [{"name": f"t{i % 4}", "rows": i, "share": i / 7, "all": [f"a{i}"] * (i % 3)} for i in range(20)]
    schema = pa.schema({"name": text, "rows": pa.int64(), "share": pa.float64(), "all": pa.list_(pa.string())})
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "t.parquet", **options)
    assert read_columns(tmp_path / "t.parquet", None, REFUSED, most_rows=20, lists=True).to_pylist() == rows
