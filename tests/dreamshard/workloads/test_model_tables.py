import json
from dataclasses import replace

import pytest

from dreamshard.workloads import ModelTable, list_tables, model_tables

USER = ModelTable(name="user", rows=100, dim=16, features=("user_id",), module_path="ebc")
ITEM = ModelTable(name="item", rows=50, dim=10, features=("clicked", "bought"), module_path="ebc")
THIRD = ModelTable(name="third", rows=50, dim=8, features=("third_id",))


def test_pooling_factors_are_by_table_or_feature():
    assert model_tables([USER, ITEM]).tables.pooling_factor.tolist() == [1.0, 2.0]
    assert model_tables([USER, ITEM], pooling_factors={"item": 5.0}).tables.pooling_factor.tolist() == [1.0, 5.0]
    assert model_tables([USER, ITEM], pooling_factors={"bought": 5.0}).tables.pooling_factor.tolist() == [1.0, 6.0]


@pytest.mark.parametrize(
    ("details", "factors"),
    [([USER], {"usr": 1.0}), ([USER, USER], {}), ([], {})],
)
def test_what_cannot_be_meant_is_refused(details, factors):
    with pytest.raises(ValueError):
        model_tables(details, pooling_factors=factors)


def test_tables_of_one_name_are_told_apart_by_modules():
    found = model_tables([USER, replace(USER, module_path="tower.ebc"), ITEM])
    assert found.tables.names == ("ebc.user", "tower.ebc.user", "item")
    assert [detail.name for detail in found.details] == ["user", "user", "item"]
    assert any("several modules have tables called user" in note for note in found.notes)


def test_a_models_task_counts_each_tables_type_and_state():
    adam = [replace(detail, optimizer="adam", dim=16) for detail in (USER, ITEM)]
    task = model_tables([*adam, replace(adam[0], name="half", precision="fp16")]).task(2, 2**20)
    per_row = [16 * (4 + 8), 16 * (4 + 8), 16 * (2 + 8)]
    assert task.table_bytes.tolist() == [100 * per_row[0], 50 * per_row[1], 100 * per_row[2]]
    assert (task.precision, task.precision_of, task.optimizer) == ("fp32", {"half": "fp16"}, "adam")


def test_of_different_optimizers_that_of_most_state_is_planned():
    found = model_tables([replace(USER, optimizer="adam"), replace(ITEM, optimizer="partial_rowwise_adam"), THIRD])
    assert found.task(1, 2**20).optimizer == "adam"
    assert any("adam of user; partial_rowwise_adam of item; sgd of third" in note for note in found.notes)
    assert any("all are planned with adam, which has the most state" in note for note in found.notes)
    assert found.task(1, 2**20, optimizer="sgd").optimizer == "sgd"


def test_a_list_of_configs_is_read_with_types_and_features(tmp_path):
    config = {"name": "item", "num_embeddings": 50, "embedding_dim": 6, "feature_names": ["clicked", "bought"]}
    more = {"data_type": "DataType.FP16", "pooling": "MEAN", "optimizer": "adam", "is_weighted": True}
    (tmp_path / "t.json").write_text(json.dumps([config | more | {"module_path": "ebc"}]))
    (item,) = list_tables(tmp_path / "t.json")
    assert (item.dim, item.precision, item.pooling, item.optimizer) == (6, "fp16", "mean", "adam")
    assert (item.module_path, item.is_weighted, item.features) == ("ebc", True, ("clicked", "bought"))
