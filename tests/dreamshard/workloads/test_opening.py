import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dreamshard.workloads import (
    WorkloadConfig,
    bundled_lists,
    list_tables,
    open_workload,
    statistics,
)
from dreamshard.workloads.workload import DATA

TINY = WorkloadConfig(source="nvidia-synthetic-tiny", batch_size=64, dim=None)


def test_every_bundled_list_names_its_tables_and_its_source():
    sources = (DATA / "SOURCES.md").read_text()
    counts = {name: len(list_tables(file)) for name, file in bundled_lists().items()}
    assert counts["mlperf-dlrm-dcnv2"] == 26
    assert (counts["nvidia-synthetic-tiny"], counts["nvidia-synthetic-colossal"]) == (55, 2002)
    assert all(name.split("-")[0] in sources for name in counts)


def test_a_subset_of_the_tables_has_the_same_lookups_as_in_the_whole():
    whole = {table.name: table for table in open_workload(TINY).tables()}
    part = list(open_workload(WorkloadConfig(**{**vars(TINY), "num_tables": 5})).tables())
    assert len(part) == 5
    for table in part:
        assert table.lookups.indices.tolist() == whole[table.name].lookups.indices.tolist()


def test_ones_own_list_of_tables_is_a_workload(tmp_path):
    (tmp_path / "t.csv").write_text("name,rows,dim,pooling_factor\nuser,100,8,1.5\nitem,5,16,0\n")
    workload = open_workload(WorkloadConfig(source=str(tmp_path / "t.csv"), batch_size=10, dim=None))
    assert workload.num_tables == 2
    user, item = (statistics(table) for table in workload.tables())
    assert (user.names[0], float(user.pooling_factor), int(user.dim)) == ("user", 1.5, 8)
    assert int(item.lookups) == 0


@pytest.mark.parametrize(("dim", "expected"), [(32, {32}), (None, {16})])
def test_dims_are_one_number_or_the_sources_own(dim, expected):
    workload = open_workload(WorkloadConfig(source="criteo-kaggle", batch_size=4, dim=dim))
    assert {table.dim for table in workload.tables()} == expected


def test_more_tables_than_there_are_is_one_clear_sentence():
    with pytest.raises(ValueError, match="criteo-kaggle has 26 tables, fewer than the 27 asked for"):
        open_workload(WorkloadConfig(source="criteo-kaggle", num_tables=27))


def test_an_unknown_workload_lists_those_there_are_and_the_kinds_of_files():
    with pytest.raises(ValueError, match=r"no workload 'nonsense'.*meta-dlrm-2021.*\.pt.*\.csv"):
        open_workload(WorkloadConfig(source="nonsense"))


@pytest.mark.parametrize(
    "wrong", [{"num_tables": 0}, {"batch_size": 0}, {"max_table_bytes": -1}, {"dim": "wide"}, {"dim": 6}, {"dim": 0}]
)
def test_a_config_that_asks_for_nothing_or_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"give|round"):
        WorkloadConfig(**wrong)


def test_a_file_whose_name_says_nothing_is_not_taken_for_a_name(tmp_path):
    (tmp_path / "clicks.log").write_text("x")
    with pytest.raises(ValueError, match=r"clicks\.log is a file whose name says nothing of its content"):
        open_workload(WorkloadConfig(source=str(tmp_path / "clicks.log")))


def test_a_parquet_of_a_data_set_is_refused_with_its_columns(tmp_path):
    pq.write_table(pa.table({"label": [0], "C1": [3]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet has no name, rows, dim \(it has \['label', 'C1'\]\)"):
        open_workload(WorkloadConfig(source=str(tmp_path / "train.parquet")))
