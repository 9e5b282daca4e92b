import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dreamshard.workloads import read_tables
from dreamshard.workloads.table_list import unused_fields
from tests.helpers.tables import tables_of


def written(path, text):
    path.write_text(text)
    return path


def pool():
    """Two tables, a batch of 100 samples, half as many distinct rows as lookups."""
    return tables_of([1000, 1000], pooling=[1.0, 3.0], names=("a", "b"), batch_size=100, bins=[[1.0], [0.0, 1.0]])


def test_a_csv_with_every_column_is_taken_as_it_is(tmp_path):
    bins = [0.5, 0.5] + [0] * 15
    header = ",".join(["name,rows,dim,pooling_factor,lookups,unique_rows"] + [f"bin_{i}" for i in range(17)])
    found = read_tables(written(tmp_path / "t.csv", f"{header}\nx,10,8,2.5,250,6,{','.join(map(str, bins))}\n"))
    assert found.defaulted == ()
    assert found.tables.names == ("x",)
    assert (int(found.tables.rows), int(found.tables.dim), float(found.tables.pooling_factor)) == (10, 8, 2.5)
    assert (int(found.tables.lookups), int(found.tables.unique_rows)) == (250, 6)
    assert found.tables.bins[0].tolist() == bins


def test_what_is_missing_comes_from_the_pool_and_is_named(tmp_path):
    found = read_tables(written(tmp_path / "t.csv", "name,rows,dim,pooling_factor\nx,500,8,2\ny,30,8,2\n"), pool())
    assert found.defaulted == ("bins", "lookups", "unique_rows")
    assert found.tables.lookups.tolist() == [200, 200]  # the pool's batch of 100
    assert found.tables.unique_rows.tolist() == [100, 30]  # half the lookups, but no more than there are rows
    assert found.tables.bins[0, :3].tolist() == [0.5, 0.5, 0]


def test_without_a_pool_a_zipf_law_fills_in_bins_that_add_up_to_one(tmp_path):
    found = read_tables(written(tmp_path / "t.csv", "name,rows,dim,pooling_factor\nx,100000,8,2\n"))
    assert int(found.tables.lookups) == 2 * 65_536
    assert 0 < int(found.tables.unique_rows) < 100_000
    assert float(found.tables.bins.sum()) == pytest.approx(1)


@pytest.mark.parametrize("defaults", [None, pool()])
def test_a_table_nobody_looks_up_gets_no_distinct_rows_and_empty_bins(tmp_path, defaults):
    found = read_tables(written(tmp_path / "t.csv", "name,rows,dim,pooling_factor\nx,100,8,0\n"), defaults)
    assert (int(found.tables.lookups), int(found.tables.unique_rows), float(found.tables.bins.sum())) == (0, 0, 0)


def test_lookups_by_feature_add_up_to_the_pooling_factor(tmp_path):
    found = read_tables(written(tmp_path / "t.csv", "name,rows,dim,lookups_per_sample_by_feature\nx,10,8,1+30\n"))
    assert float(found.tables.pooling_factor) == 31


def test_a_missing_pooling_factor_is_named(tmp_path):
    assert "pooling_factor" in read_tables(written(tmp_path / "t.csv", "name,rows,dim\nx,10,8\n")).defaulted


def test_parquet_reads_like_csv(tmp_path):
    pq.write_table(pa.table({"name": ["x"], "rows": [10], "dim": [8], "pooling_factor": [1.5]}), tmp_path / "t.parquet")
    assert float(read_tables(tmp_path / "t.parquet").tables.pooling_factor) == 1.5


@pytest.mark.parametrize("wrap", [lambda tables: tables, lambda tables: {"tables": tables}])
def test_torchrec_json_is_read(tmp_path, wrap):
    config = {"name": "t1", "num_embeddings": 10, "embedding_dim": 8, "feature_names": ["f"], "pooling_factor": 3}
    found = read_tables(written(tmp_path / "t.json", json.dumps(wrap([config]))))
    assert (found.tables.names, int(found.tables.rows), int(found.tables.dim)) == (("t1",), 10, 8)
    assert float(found.tables.pooling_factor) == 3


def test_fields_of_a_json_that_are_not_used_are_named(tmp_path):
    config = {"name": "t1", "num_embeddings": 10, "embedding_dim": 8, "feature_names": ["f"], "data_type": "FP16"}
    assert unused_fields(written(tmp_path / "t.json", json.dumps([config]))) == ["data_type", "feature_names"]
    assert unused_fields(written(tmp_path / "t.csv", "name,rows,dim,owner\nx,10,8,me\n")) == []


def test_rows_beyond_what_a_float_holds_stay_exact(tmp_path):
    found = read_tables(written(tmp_path / "t.csv", f"name,rows,dim,pooling_factor\nx,{2**53 + 1},8,0\n"), pool())
    assert int(found.tables.rows) == 2**53 + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,rows,dim,pooling_factor\n", "lists no tables"),
        ("name,rows\nx,1\n", "has no column dim"),
        ("name,name,rows,dim\na,b,10,8\n", "has 2 columns name, so it is unknown which"),
        ("", "has no column name, rows, dim"),
        ("name,rows,dim\nx,10,8\ny,ten,8\n", "line 3: rows is 'ten', not a whole number"),
        ("name,rows,dim\nx,10.5,8\n", "line 2: rows is '10.5'"),
        ("name,rows,dim\nx,0,8\n", "line 2: rows is 0"),
        ("name,rows,dim\nx,-4,8\n", "line 2: rows is '-4'"),
        ("name,rows,dim\nx,10,6\n", "line 2: dim is 6, but the fused operator takes positive multiples of 4"),
        ("name,rows,dim\nx,,8\n", "line 2: rows or dim of table 'x' is empty"),
        ("name,rows,dim\n,10,8\n", "line 2: the table has no name"),
        ("name,rows,dim\nx,10,8\nx,10,8\n", "line 3: table 'x' is also at .*line 2"),
        ("name,rows,dim\nx,10\n", "line 2 does not have the 3 fields"),
        ("name,rows,dim\nx,10,8,9\n", "line 2 does not have the 3 fields"),
        ("name,rows,dim,pooling_factor\nx,10,8,nan\n", "line 2: pooling_factor is 'nan'"),
        ("name,rows,dim,pooling_factor\nx,10,8,-1\n", "line 2: pooling_factor is '-1'"),
        ("name,rows,dim,unique_rows\nx,10,8,11\n", "line 2: unique_rows is 11, more than"),
        ("name,rows,dim,bin_0\nx,10,8,1\n", "line 2: bin_1, .* missing"),
        ("name,rows,dim,lookups_per_sample_by_feature\nx,10,8,1+b\n", "line 2: lookups_per_sample_by_feature is 'b'"),
    ],
)
def test_a_wrong_csv_names_the_line_and_the_value(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_tables(written(tmp_path / "t.csv", text))


def test_bins_that_do_not_add_up_to_one_are_refused(tmp_path):
    header = "name,rows,dim," + ",".join(f"bin_{i}" for i in range(17))
    with pytest.raises(ValueError, match=r"add up to 1.7"):
        read_tables(written(tmp_path / "t.csv", f"{header}\nx,10,8{',0.1' * 17}\n"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"\xff\xfe\x00", "not a CSV text file"),
        ("t.parquet", b"PAR1", "cannot be read as Parquet"),
        ("t.json", b"{", "is not JSON"),
        ("t.json", b"[1]", "not a list of objects"),
        ("t.json", b'[{"name": "x"}]', "table 1: rows or dim of table 'x' is empty"),
        ("t.xlsx", b"", "not a list of tables"),
    ],
)
def test_a_file_of_another_kind_is_one_clear_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_tables(tmp_path / name)


def test_a_missing_file_is_one_clear_sentence(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_tables(tmp_path / "t.csv")
