import json

import pytest

from dreamshard.model_configs import read_configs

USER = {"name": "user", "num_embeddings": 100, "embedding_dim": 16, "feature_names": ["user_id"]}
ITEM = {"name": "item", "num_embeddings": 50, "embedding_dim": 6, "feature_names": ["clicked", "bought"]}


def written(path, *configs):
    path.write_text(json.dumps(list(configs)))
    return path


def test_a_list_of_configs_is_read_with_types_and_features(tmp_path):
    more = {
        "data_type": "DataType.FP16",
        "pooling": "MEAN",
        "optimizer": "adam",
        "module_path": "ebc",
        "is_weighted": True,
    }
    found = read_configs(written(tmp_path / "t.json", USER, ITEM | more), {"bought": 3.0})
    assert found.tables.dim.tolist() == [16, 8]
    assert found.tables.pooling_factor.tolist() == [1.0, 4.0]
    item = found.by_name["item"]
    assert (item.dim, item.precision, item.pooling, item.optimizer) == (6, "fp16", "mean", "adam")
    assert (item.module_path, item.is_weighted, item.features) == ("ebc", True, ("clicked", "bought"))


def test_statistics_in_the_file_are_kept(tmp_path):
    bins = {f"bin_{i}": float(i == 3) for i in range(17)}
    given = USER | {"pooling_factor": 2.5, "lookups": 250, "unique_rows": 30} | bins
    tables = read_configs(written(tmp_path / "t.json", given)).tables
    assert (float(tables.pooling_factor), int(tables.lookups), int(tables.unique_rows)) == (2.5, 250, 30)
    assert tables.bins[0].nonzero().flatten().tolist() == [3]


def test_a_given_pooling_factor_precedes_the_files(tmp_path):
    file = written(tmp_path / "t.json", USER | {"pooling_factor": 2.5})
    assert read_configs(file, {"user": 4.0}).tables.pooling_factor.tolist() == [4.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": "INT4"}, "table 1: data_type is 'INT4'.* fp32, fp16, bf16, int8"),
        ({"pooling": "MAX"}, "pooling is 'MAX'"),
        ({"optimizer": "adamw"}, "optimizer is 'adamw'"),
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"embedding_dim": "8"}, "embedding_dim is '8'"),
        ({"num_embeddings": 0}, "rows is 0"),
        ({"feature_names": "f"}, "feature_names is 'f'"),
        ({"name": ""}, "has no name"),
    ],
)
def test_a_wrong_config_names_the_value(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_configs(written(tmp_path / "t.json", USER | change))
