import os
import pickle

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dreamshard.workloads import LookupFiles, Lookups, read_lookups, write_lookups

THREE_SAMPLES = Lookups(torch.tensor([5, 2, 2, 7], dtype=torch.int32), torch.tensor([0, 2, 2, 4]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lookups_come_back_from_parquet_as_they_were_written(tmp_path, dtype):
    write_lookups(tmp_path / "t.parquet", Lookups(THREE_SAMPLES.indices.to(dtype), THREE_SAMPLES.offsets))
    read = read_lookups(tmp_path / "t.parquet", rows=8)
    assert read.indices.dtype == dtype
    assert read.indices.tolist() == [5, 2, 2, 7]
    assert read.offsets.tolist() == [0, 2, 2, 4]


def test_a_file_of_lookups_has_one_list_per_sample(tmp_path):
    write_lookups(tmp_path / "t.parquet", THREE_SAMPLES)
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {"indices": [[5, 2], [], [2, 7]]}


def test_offsets_that_do_not_cover_the_indices_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="offsets run from 0 to 3, but there are 4 indices"):
        write_lookups(tmp_path / "t.parquet", Lookups(THREE_SAMPLES.indices, torch.tensor([0, 2, 3])))
    assert list(tmp_path.iterdir()) == []


def test_an_index_outside_the_table_is_refused_on_reading(tmp_path):
    write_lookups(tmp_path / "t.parquet", THREE_SAMPLES)
    with pytest.raises(ValueError, match="index 7 outside the table of 7 rows"):
        read_lookups(tmp_path / "t.parquet", rows=7)


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([[0.5]]), pa.array([["a"]])])
def test_a_parquet_file_of_something_else_is_refused(tmp_path, column):
    pq.write_table(pa.table({"indices": column}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="has indices of type"):
        read_lookups(tmp_path / "t.parquet")


@pytest.mark.parametrize("rows", [[[1], None], [[1, None]]])
def test_missing_values_in_a_file_of_lookups_are_refused(tmp_path, rows):
    pq.write_table(pa.table({"indices": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="missing values"):
        read_lookups(tmp_path / "t.parquet")


def test_lookup_files_survive_pickling_and_give_the_first_samples(tmp_path):
    write_lookups(tmp_path / "t.parquet", THREE_SAMPLES)
    source = pickle.loads(pickle.dumps(LookupFiles({"t": tmp_path / "t.parquet"}, batch_size=2)))
    assert source("t").indices.tolist() == [5, 2]
    assert source("t").offsets.tolist() == [0, 2, 2]


def test_old_copies_of_remote_lookups_are_removed_and_fetched_again(tmp_path):
    store = fsspec.filesystem("memory")
    for name in "abc":
        write_lookups(tmp_path / name, THREE_SAMPLES)
        store.pipe(f"/lookups/{name}", (tmp_path / name).read_bytes())
    copies = tmp_path / "copies"
    files = LookupFiles({name: f"memory://lookups/{name}" for name in "abc"}, copies=copies)
    for name in "ab":
        assert files(name).offsets.tolist() == THREE_SAMPLES.offsets.tolist()
    for name in "ab":
        os.utime(copies / name, (0, 0))
    files("c")
    assert {copy.name for copy in copies.iterdir()} == {"c"}
    assert files("b").offsets.tolist() == THREE_SAMPLES.offsets.tolist()
