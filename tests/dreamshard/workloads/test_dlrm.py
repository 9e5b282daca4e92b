import gzip
import os

import numpy as np
import pytest
import torch

from dreamshard.workloads import WorkloadConfig, open_workload

INDICES = torch.tensor([4, 4, 1, 0, 9])
LENGTHS = torch.tensor([[2, 0, 1], [0, 1, 1]])  # two tables, three samples
OFFSETS = torch.tensor([0, 2, 2, 3, 3, 4, 5])


def save(path, indices=INDICES, offsets=OFFSETS, lengths=LENGTHS):
    torch.save((indices, offsets, lengths), path)
    return path


def read(path, **config):
    return list(open_workload(WorkloadConfig(source=str(path), **{"dim": 8, **config})).tables())


def packed(path):
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


def test_tables_have_the_rows_their_largest_index_needs_and_their_own_samples(tmp_path):
    first, second = read(save(tmp_path / "d.pt"))
    assert (first.name, first.rows, first.dim) == ("t0000", 5, 8)
    assert first.lookups.indices.tolist() == [4, 4, 1]
    assert first.lookups.offsets.tolist() == [0, 2, 2, 3]
    assert (second.rows, second.lookups.indices.tolist()) == (10, [0, 9])
    assert second.lookups.offsets.tolist() == [0, 0, 1, 2]
    assert second.lookups.indices.dtype == torch.int32


def test_a_gzipped_file_reads_the_same_and_leaves_nothing_behind(tmp_path):
    path = packed(save(tmp_path / "d.pt"))
    tables = read(path)
    assert [table.lookups.indices.tolist() for table in tables] == [[4, 4, 1], [0, 9]]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.pt", "d.pt.gz"]


def test_a_smaller_batch_is_the_first_samples_of_the_file(tmp_path):
    first, second = read(save(tmp_path / "d.pt"), batch_size=2)
    assert (first.lookups.indices.tolist(), second.lookups.indices.tolist()) == ([4, 4], [0])
    assert (first.rows, second.rows) == (5, 10)  # of the whole file


def test_rows_names_and_dims_are_read_from_a_list_beside_the_file(tmp_path):
    (tmp_path / "d.tables.csv").write_text("name,rows,dim\nuser,100,32\nitem,10,64\n")
    tables = read(save(tmp_path / "d.pt"), dim=None)
    assert [(table.name, table.rows, table.dim) for table in tables] == [("user", 100, 32), ("item", 10, 64)]


def test_an_index_outside_the_rows_given_is_refused(tmp_path):
    (tmp_path / "d.tables.csv").write_text("name,rows,dim\nuser,100,32\nitem,9,64\n")
    with pytest.raises(ValueError, match=r"table 1 of d.pt has index 9 outside the table of 9 rows"):
        read(save(tmp_path / "d.pt"))


class RunsCode:
    def __reduce__(self):
        return os.mkdir, (os.environ["DREAMSHARD_TEST_TRAP"],)


def test_a_file_that_would_run_code_when_unpickled_does_not(tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    monkeypatch.setenv("DREAMSHARD_TEST_TRAP", str(trap))
    torch.save((INDICES, OFFSETS, RunsCode()), tmp_path / "d.pt")
    with pytest.raises(ValueError, match="something other than tensors"):
        read(tmp_path / "d.pt")
    assert not trap.exists()


@pytest.mark.parametrize("content", [INDICES, {"indices": INDICES}, (INDICES, OFFSETS), (INDICES, OFFSETS, 3)])
def test_a_file_of_other_things_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "d.pt")
    with pytest.raises(ValueError, match="no lookups can be read"):
        read(tmp_path / "d.pt")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"indices": torch.tensor([4, 4, 1, 0, -9])}, r"table 1 of d.pt has a negative index \(-9\)"),
        ({"lengths": LENGTHS.float()}, "lengths of type torch.float32"),
        ({"indices": INDICES.double()}, "indices of type torch.float64"),
        ({"lengths": LENGTHS.flatten()}, r"lengths of .* shape \[6\]"),
        ({"lengths": LENGTHS[:1]}, "7 offsets for lengths of shape"),
        ({"lengths": torch.tensor([[2, -1, 2], [0, 1, 1]])}, "at table 0, sample 1"),
        ({"lengths": torch.tensor([[2, 0, 1], [1, 0, 1]])}, "at table 1, sample 0"),
        ({"offsets": torch.tensor([0, 2, 2, 3, 3, 4, 6])}, "offsets from 0 to 6 for 5 indices"),
        ({"offsets": torch.tensor([0, 2, 1, 3, 3, 4, 5])}, "at table 0, sample 1"),
    ],
)
def test_inconsistent_lookups_are_refused_with_the_place(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        read(save(tmp_path / "d.pt", **wrong))


def test_an_array_of_rows_is_a_lookup_per_sample_and_table(tmp_path):
    np.save(tmp_path / "day_0_sparse.npy", np.asarray([[4, 0], [1, 9], [4, 3]], dtype=np.int32))
    first, second = read(tmp_path / "day_0_sparse.npy", batch_size=2)
    assert (first.rows, second.rows) == (5, 10), "of the whole file"
    assert (first.lookups.indices.tolist(), second.lookups.indices.tolist()) == ([4, 1], [0, 9])
    assert first.lookups.offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("names", [("X_cat",), ("0", "1")])
def test_archives_of_arrays_are_read(tmp_path, names):
    arrays = [np.asarray([[4, 0], [1, 9]])] if len(names) == 1 else [np.asarray([[4, 1], [0, 9]])] * 2
    np.savez(tmp_path / "d.npz", **dict(zip(names, arrays, strict=True)))
    first, second = read(tmp_path / "d.npz")
    assert first.lookups.batch_size == second.lookups.batch_size == 2
    assert first.lookups.offsets.tolist() == ([0, 1, 2] if len(names) == 1 else [0, 2, 4])
