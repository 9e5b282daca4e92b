import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dreamshard import read_tables
from dreamshard.tables import ModelTable
from dreamshard.workloads import list_tables, model_tables
from tests.helpers.tables import tables_of

BINS = [f"bin_{i}" for i in range(17)]


def written(path, text):
    path.write_text(text)
    return path


def pool():
    """Two tables, a batch of 100 samples, half as many distinct rows as lookups."""
    return tables_of([1000, 1000], pooling=[1.0, 3.0], names=("a", "b"), batch_size=100, bins=[[1.0], [0.0, 1.0]])


def test_a_csv_with_every_column_is_taken_as_it_is(tmp_path):
    bins = [0.5, 0.5] + [0] * 15
    header = ",".join(["name,rows,dim,pooling_factor,lookups,unique_rows", *BINS])
    tables = read_tables(written(tmp_path / "t.csv", f"{header}\nx,10,8,2.5,250,6,{','.join(map(str, bins))}\n"))
    assert tables.names == ("x",)
    assert (int(tables.rows), int(tables.dim), float(tables.pooling_factor)) == (10, 8, 2.5)
    assert (int(tables.lookups), int(tables.unique_rows)) == (250, 6)
    assert tables.bins[0].tolist() == bins


def test_what_is_missing_comes_from_the_pool_and_is_named(tmp_path):
    tables = read_tables(written(tmp_path / "t.csv", "name,rows,dim,pooling_factor\nx,500,8,2\ny,30,8,2\n"), pool())
    assert tables.lookups.tolist() == [200, 200]  # the pool's batch of 100
    assert tables.unique_rows.tolist() == [100, 30]  # half the lookups, but no more than there are rows
    assert tables.bins[0, :3].tolist() == [0.5, 0.5, 0]
    tables = read_tables(written(tmp_path / "t.csv", "name,rows,dim\nb,1000,4\nc,1000,4\n"), pool())
    assert tables.pooling_factor.tolist() == [3.0, 1.0], "of the same table and of no other"
    assert tables.bins[0, :2].tolist() == [0.0, 1.0]


def test_without_a_pool_a_zipf_law_fills_in_the_bins(tmp_path):
    tables = read_tables(written(tmp_path / "t.csv", "name,rows,dim,pooling_factor\n007,100000,8,2\n"))
    assert tables.names == ("007",), "a name of digits stays as it is"
    assert int(tables.lookups) == 2 * 65_536
    assert 0 < int(tables.unique_rows) < 100_000
    assert float(tables.bins.sum()) == pytest.approx(1)


def test_parquet_and_torchrecs_json_read_like_csv(tmp_path):
    pq.write_table(pa.table({"name": ["x"], "rows": [10], "dim": [8], "pooling_factor": [3]}), tmp_path / "t.parquet")
    config = {"name": "x", "num_embeddings": 10, "embedding_dim": 6, "feature_names": ["f"], "pooling_factor": 3}
    files = [tmp_path / "t.parquet", written(tmp_path / "t.json", json.dumps([config]))]
    of_the_papers_authors = {"index": "x", "row": 10, "dim": 8, "pooling_factor": 3} | dict.fromkeys(BINS, 1 / 17)
    files += [written(tmp_path / "u.json", json.dumps({"tables": [of_the_papers_authors]}))]
    files += [written(tmp_path / "t.csv", "name,num_embeddings,embedding_dim,pooling_factor\nx,10,6,3\n")]
    for tables in map(read_tables, files):
        assert (tables.names, int(tables.rows), int(tables.dim)) == (("x",), 10, 8), "dims are rounded up to fours"
        assert float(tables.pooling_factor) == 3


def test_vectors_follow_from_poolings_features_or_lengths(tmp_path):
    header = "name,collection,rows,dim,pooling_factor,num_poolings,output,feature_names"
    lines = ["t,ebc,9,8,40,20.5,pooled,f", "u,ebc,9,8,2,,pooled,f+g", "t,ec,9,8,70,4,sequence,f"]
    model = model_tables(list_tables(written(tmp_path / "t.csv", "\n".join([header, *lines]))))
    assert model.tables.names == ("ebc.t", "u", "ec.t")
    assert model.tables.vectors.tolist() == [20.5, 2.0, 70.0]
    assert model.tables.sent_dim.tolist() == [164, 16, 560]


CONFIG = '[{"name": "x", "num_embeddings": 1, "embedding_dim": 4, %s}]'


@pytest.mark.parametrize(
    "text",
    [
        "name,rows,dim,pooling_factor\n",
        "name,rows,dim\nx,10,8\ny,ten,8\n",
        "name,rows,dim\n,,8\n",
        "name,rows,dim\nx,10,8\nx,10,8\n",
        "name,rows,dim,pooling_factor\nx,10,8,-1\n",
        "name,rows,dim,bin_0\nx,10,8,1\n",
        "name,rows,dim,block_share\nx,10,8,0.7+0.7\n",
        "name,rows,dim\nt," + "9" * 400 + ",4",
        '{"layers": [{"slot_size_array": [4]}]}',
        '[{"name": "x"}]',
        CONFIG % '"data_type": "INT4"',
        CONFIG % '"optimizer": "adamw"',
    ],
)
def test_a_wrong_list_is_refused_in_a_short_sentence(tmp_path, text):
    with pytest.raises(ValueError) as raised:
        read_tables(written(tmp_path / ("t.json" if text[:1] in ("[", "{") else "t.csv"), text))
    assert len(str(raised.value)) < 600


USER = ModelTable(name="user", rows=100, dim=16, features=("user_id",), module_path="ebc")
ITEM = ModelTable(name="item", rows=50, dim=10, features=("clicked", "bought"), module_path="ebc")
THIRD = ModelTable(name="third", rows=50, dim=8, features=("third_id",))


def test_pooling_factors_are_by_table_or_feature():
    assert model_tables([USER, ITEM]).tables.pooling_factor.tolist() == [1.0, 2.0]
    assert model_tables([USER, ITEM], pooling_factors={"item": 5.0}).tables.pooling_factor.tolist() == [1.0, 5.0]
    assert model_tables([USER, ITEM], pooling_factors={"bought": 5.0}).tables.pooling_factor.tolist() == [1.0, 6.0]


@pytest.mark.parametrize(("details", "factors"), [([USER], {"usr": 1.0}), ([USER, USER], {}), ([], {})])
def test_what_cannot_be_meant_is_refused(details, factors):
    with pytest.raises(ValueError):
        model_tables(details, pooling_factors=factors)


def test_tables_of_one_name_are_told_apart_by_modules():
    model = model_tables([USER, replace(USER, module_path="tower.ebc"), ITEM])
    assert model.tables.names == ("ebc.user", "tower.ebc.user", "item")
    assert [detail.name for detail in model.details] == ["user", "user", "item"]
    assert any("several modules have tables called user" in note for note in model.notes)


def test_a_models_task_counts_each_tables_type_and_state():
    adam = [replace(detail, optimizer="adam", dim=16) for detail in (USER, ITEM)]
    task = model_tables([*adam, replace(adam[0], name="half", precision="fp16")]).task(2, 2**20)
    per_row = [16 * (4 + 8), 16 * (4 + 8), 16 * (2 + 8)]
    assert task.table_bytes.tolist() == [100 * per_row[0], 50 * per_row[1], 100 * per_row[2]]
    assert (task.precision, task.precision_of, task.optimizer) == ("fp32", {"half": "fp16"}, "adam")


def test_of_different_optimizers_that_of_most_state_is_planned():
    model = model_tables([replace(USER, optimizer="adam"), replace(ITEM, optimizer="partial_rowwise_adam"), THIRD])
    assert model.task(1, 2**20).optimizer == "adam"
    assert any("adam of user; partial_rowwise_adam of item; sgd of third" in note for note in model.notes)
    assert model.task(1, 2**20, optimizer="sgd").optimizer == "sgd"


def test_a_list_of_configs_is_read_with_types_and_features(tmp_path):
    config = {"name": "item", "num_embeddings": 50, "embedding_dim": 6, "feature_names": ["clicked", "bought"]}
    more = {"data_type": "DataType.FP16", "pooling": "MEAN", "optimizer": "adam", "is_weighted": True}
    (tmp_path / "t.json").write_text(json.dumps([config | more | {"module_path": "ebc"}]))
    (item,) = list_tables(tmp_path / "t.json")
    assert (item.dim, item.precision, item.pooling, item.optimizer) == (6, "fp16", "mean", "adam")
    assert (item.module_path, item.is_weighted, item.features) == ("ebc", True, ("clicked", "bought"))
