import gzip
import os

import numpy as np
import pytest
import torch

from dreamshard.workloads import WorkloadConfig, open_workload
from tests.helpers.lookups import drawn

INDICES = torch.tensor([4, 4, 1, 0, 9])
LENGTHS = torch.tensor([[2, 0, 1], [0, 1, 1]])  # two tables, three samples
OFFSETS = torch.tensor([0, 2, 2, 3, 3, 4, 5])


def save(path, indices=INDICES, offsets=OFFSETS, lengths=LENGTHS):
    torch.save((indices, offsets, lengths), path)
    return path


def read(path, **config):
    return drawn(open_workload(WorkloadConfig(source=str(path), **{"dim": None, **config})))


def rows_looked_up(tables):
    return [(lookups.indices.tolist(), lookups.offsets.tolist()) for _, lookups in tables]


@pytest.mark.parametrize("gzipped", [False, True])
def test_tensors_give_each_table_its_own_samples(tmp_path, gzipped):
    path = save(tmp_path / "d.pt")
    if gzipped:
        content, path = path.read_bytes(), tmp_path / "d.pt.gz"
        path.write_bytes(gzip.compress(content))
    tables = read(path)
    assert [(table.name, table.rows, table.dim) for table, _ in tables] == [("t0000", 5, 16), ("t0001", 10, 16)]
    assert rows_looked_up(tables) == [([4, 4, 1], [0, 2, 2, 3]), ([0, 9], [0, 0, 1, 2])]
    assert tables[1][1].indices.dtype == torch.int32
    fewer = read(path, batch_size=2)
    assert rows_looked_up(fewer) == [([4, 4], [0, 2, 2]), ([0], [0, 0, 1])]
    assert [table.rows for table, _ in fewer] == [5, 10], "of the whole file"


def test_names_rows_and_dims_come_from_a_list_next_to_the_file(tmp_path):
    (tmp_path / "d.tables.csv").write_text("name,rows,dim\nuser,100,32\nitem,10,64\n")
    tables = read(save(tmp_path / "d.pt"))
    assert [(table.name, table.rows, table.dim) for table, _ in tables] == [("user", 100, 32), ("item", 10, 64)]
    (tmp_path / "d.tables.csv").write_text("name,rows,dim\nuser,100,32\nitem,9,64\n")
    with pytest.raises(ValueError):
        read(tmp_path / "d.pt")
    (tmp_path / "d.tables.csv").write_text("name,rows,dim\nuser,100,32\n")
    with pytest.raises(ValueError):
        read(tmp_path / "d.pt")


class RunsCode:
    def __reduce__(self):
        return os.mkdir, (os.environ["DREAMSHARD_TEST_TRAP"],)


def test_a_file_that_would_run_code_when_unpickled_does_not(tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    monkeypatch.setenv("DREAMSHARD_TEST_TRAP", str(trap))
    torch.save((INDICES, OFFSETS, RunsCode()), tmp_path / "d.pt")
    with pytest.raises(ValueError):
        read(tmp_path / "d.pt")
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        (INDICES.double(), OFFSETS, LENGTHS),
        (INDICES, torch.tensor([0, 2, 2, 3, 3, 4, 6]), LENGTHS),
        (INDICES, torch.tensor([0, 2, 1, 3, 3, 4, 5]), LENGTHS),
        (torch.tensor([4, 4, 1, 0, -9]), OFFSETS, LENGTHS),
    ],
)
def test_inconsistent_tensors_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "d.pt")
    with pytest.raises(ValueError):
        read(tmp_path / "d.pt")


@pytest.mark.parametrize("file", ["day_0_sparse.npy", "one.npz", "columns.npz"])
def test_an_array_of_rows_is_a_lookup_per_sample_and_table(tmp_path, file):
    rows = np.asarray([[4, 0], [1, 9], [4, 3]], dtype=np.int32)
    contents = {
        "day_0_sparse.npy": lambda path: np.save(path, rows),
        "one.npz": lambda path: np.savez(path, X_cat=rows),
    }
    contents["columns.npz"] = lambda path: np.savez(path, **{str(t): rows[:, t, None] for t in range(2)})
    contents[file](tmp_path / file)
    tables = read(tmp_path / file, batch_size=2)
    assert [table.rows for table, _ in tables] == [5, 10], "of the whole file"
    assert rows_looked_up(tables) == [([4, 1], [0, 1, 2]), ([0, 9], [0, 1, 2])]


def line(label="0", numbers=("1",) * 13, categories=("a",) * 26):
    return "\t".join([label, *numbers, *categories]) + "\n"


def test_a_criteo_log_has_a_table_per_column(tmp_path):
    first = ("05db9164", "") + ("1f",) * 24
    (tmp_path / "d.tsv").write_text(line(categories=first) + line("1", ("", *["-2"] * 12)))
    tables = read(tmp_path / "d.tsv")
    assert (len(tables), tables[0][0].rows, tables[0][0].dim) == (26, 1460, 16)
    assert rows_looked_up(tables)[:2] == [([1 + 0x05DB9164 % 1459, 1 + 0xA], [0, 1, 2]), ([0, 1 + 0xA], [0, 1, 2])]


@pytest.mark.parametrize("name", ["train.txt", "day_0", "day_0.gz"])
def test_logs_are_read_under_the_names_they_are_published_by(tmp_path, name):
    content = line().encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    first, _ = read(tmp_path / name)[0]
    assert (first.rows, first.dim) == ((1460, 16) if name == "train.txt" else (40_000_000, 128))


@pytest.mark.parametrize(
    "content", [line() + "0\t1\t2\n", line() + line(numbers=("x",) * 13), line() + line(categories=("g",) * 26)]
)
def test_a_file_that_is_not_a_criteo_log_is_one_clear_sentence(tmp_path, content):
    (tmp_path / "d.tsv").write_text(content)
    with pytest.raises(ValueError):
        read(tmp_path / "d.tsv")
