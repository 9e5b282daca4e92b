import gzip

import pytest

from dreamshard.workloads import WorkloadConfig, open_workload


def line(label="0", numbers=("1",) * 13, categories=("a",) * 26):
    return "\t".join([label, *numbers, *categories]) + "\n"


def read(path, **config):
    return list(open_workload(WorkloadConfig(source=str(path), **{"dim": None, **config})).tables())


def test_each_categorical_column_is_a_table_with_one_lookup_per_sample(tmp_path):
    first = ("05db9164", "") + ("1f",) * 24
    (tmp_path / "d.tsv").write_text(line(categories=first) + line("1", ("", *["-2"] * 12)))
    tables = read(tmp_path / "d.tsv")
    assert [table.name for table in tables] == [f"C{i}" for i in range(1, 27)]
    assert (tables[0].rows, tables[0].dim) == (1460, 16)
    assert tables[0].lookups.indices.tolist() == [1 + 0x05DB9164 % 1459, 1 + 0xA]
    assert tables[1].lookups.indices.tolist() == [0, 1 + 0xA]  # missing is row 0
    assert tables[0].lookups.offsets.tolist() == [0, 1, 2]
    assert all(int(table.lookups.indices.max()) < table.rows for table in tables)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty|Empty"),
        (line() + "0\t1\t2\n", "not a Criteo log or is truncated.*40"),
        (line() + line(numbers=("x",) * 13), "not a Criteo log or is truncated.*'x'"),
        (line() + line(categories=("g",) * 26), "column C1, line 2: 'g' is not a hexadecimal"),
        (line(categories=("-5",) * 26), "line 1: '-5' is not a hexadecimal"),
    ],
)
def test_a_file_that_is_not_a_criteo_log_is_one_clear_sentence(tmp_path, content, message):
    (tmp_path / "d.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "d.tsv")


@pytest.mark.parametrize("name", ["train.txt", "day_0", "day_0.gz"])
def test_logs_are_read_under_the_names_they_are_published_by(tmp_path, name):
    content = line().encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    first = read(tmp_path / name)[0]
    assert (first.rows, first.dim) == ((1460, 16) if name == "train.txt" else (40_000_000, 128))


def test_sizes_are_said_and_may_be_given_beside_the_log(tmp_path):
    (tmp_path / "day_1.tsv").write_text(line())
    assert "mlperf-dlrm-dcnv2" in open_workload(WorkloadConfig(source=str(tmp_path / "day_1.tsv"))).description
    rows = "\n".join(f"C{i},{100 + i},8" for i in range(1, 27))
    (tmp_path / "day_1.tables.csv").write_text(f"name,rows,dim\n{rows}\n")
    assert [(table.rows, table.dim) for table in read(tmp_path / "day_1.tsv")][:2] == [(101, 8), (102, 8)]
