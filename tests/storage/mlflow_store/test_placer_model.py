"""The model that MLflow serves, without a server."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from dreamshard import training
from dreamshard.training import save_placer, with_algorithm
from storage.mlflow_store.placer_model import PlacerModel
from tests.helpers.tables import pool_of
from tests.helpers.trained import TINY, learnt, learnt_placer, make_placer, start_training

TABLES = [{"name": name, "rows": 1000, "dim": 64, "pooling_factor": 5.0} for name in ("users", "items", "words")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("version") / "placer"
    save_placer(learnt_placer(), folder)
    served = PlacerModel()
    served.load_context(SimpleNamespace(artifacts={"placer": str(folder)}))
    return served


def answer(model, **fields):
    [plan] = model.predict(None, [{"num_devices": 2, "memory_gb": 1.0, "tables": TABLES, "budget_ms": 0.0, **fields}])
    return plan


def test_an_answer_says_what_its_costs_are_of(model):
    plan = answer(model)
    assert plan["costs_of"] == learnt().cost_network.measured_on.to_json()
    assert plan["costs_of"]["hardware"] == "simulated rtx2080ti"
    assert (plan["differs_in"], plan["warning"]) == ([], None)


def test_an_answer_warns_of_other_hardware_and_of_another_setting(model):
    plan = answer(model, hardware="h100", precision="fp16", batch_size=1024)
    assert plan["differs_in"] == ["hardware", "precision", "batch_size"]
    assert "not of h100" in plan["warning"]
    assert plan["predicted"]["overall_ms"] < answer(model)["predicted"]["overall_ms"]


def test_a_version_of_autoshard_is_answered_by_its_name_and_predicts_no_cost_of_a_step(tmp_path):
    placer = make_placer(start_training(pool_of(24), with_algorithm(TINY, "autoshard"), seed=0))
    training.save_placer(placer, tmp_path / "placer")
    served = PlacerModel()
    served.load_context(SimpleNamespace(artifacts={"placer": str(tmp_path / "placer")}))
    plan = answer(served)
    assert plan["placer"] == "autoshard"
    assert {shard["table"] for shard in plan["shards"]} == {"users", "items", "words"}
    assert plan["predicted"]["overall_ms"] is None


USERS = TABLES[0]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_size": 0}, "inputs[0].batch_size: Input should be greater than or equal to 1"),
        ({"num_devices": "2"}, "inputs[0].num_devices: Input should be a valid integer, got '2'"),
        ({"memory_gb": float("nan")}, "inputs[0].memory_gb: Input should be"),
        ({"memory_gb": 1e-5}, "table 'users' of inputs[0] needs"),
        ({"devices": 2}, "inputs[0].devices: Extra inputs are not permitted"),
        ({"precision": "int4"}, "inputs[0].precision: Input should be 'fp32', 'fp16', 'bf16' or 'int8', got 'int4'"),
        ({"tables": []}, "inputs[0].tables: List should have at least 1 item"),
        (
            {"tables": [USERS | {"name": str(t)} for t in range(4097)]},
            "inputs[0].tables: List should have at most 4096",
        ),
        ({"tables": [{"name": "users", "dim": 64, "pooling_factor": 1.0}]}, "inputs[0].tables[0].rows: Field required"),
        ({"tables": [USERS | {"dim": 63}]}, "inputs[0].tables[0].dim: Input should be a multiple of 4, got 63"),
        ({"tables": [USERS | {"bins": [0.5] * 17}]}, "but add up to 8.5"),
        ({"tables": [USERS, USERS]}, "inputs[0].tables[1]: table 'users' is also at inputs[0].tables[0]"),
    ],
)
def test_a_wrong_field_is_named(model, wrong, named):
    with pytest.raises(MlflowException) as refused:
        answer(model, **wrong)
    assert named in str(refused.value)
    assert refused.value.get_http_status_code() == 400


def test_a_field_with_an_endless_name_is_named_in_brief(model):
    with pytest.raises(MlflowException, match=r"xxx\.\.\.: Extra inputs are not permitted") as raised:
        answer(model, **{"x" * 2_000: 1})
    assert len(str(raised.value)) < 500
