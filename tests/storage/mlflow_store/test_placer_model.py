"""The model that MLflow serves, without a server."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from dreamshard import trained
from dreamshard.algorithms import with_algorithm
from dreamshard.model_files import save_placer
from dreamshard.trained import make_placer, start_training
from storage.mlflow_store.placer_model import PlacerModel
from tests.helpers.tables import pool_of
from tests.helpers.trained import TINY, learnt, learnt_placer

TABLES = [{"name": name, "rows": 1000, "dim": 64, "pooling_factor": 5.0} for name in ("users", "items", "words")]
BUDGET = {"budget_ms": 30_000.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("version") / "placer"
    save_placer(learnt_placer(), folder)
    served = PlacerModel()
    served.load_context(SimpleNamespace(artifacts={"placer": str(folder)}, model_config={"version": "3"}))
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


def test_a_limit_of_time_cuts_the_search_of_all_requests_and_the_answers_say_so(model, monkeypatch):
    many = [{**TABLES[0], "name": str(t), "rows": 1000 + t} for t in range(60)]
    [unlimited] = model.predict(None, [{"num_devices": 4, "memory_gb": 1.0, "tables": many}])
    monkeypatch.setattr(model, "search_s", 600.0)
    [same] = model.predict(None, [{"num_devices": 4, "memory_gb": 1.0, "tables": many}])
    assert same == unlimited, "a limit that is not reached changes nothing"
    monkeypatch.setattr(model, "search_s", 0.004)
    cut = model.predict(None, [{"num_devices": 4, "memory_gb": 1.0, "tables": many, **more} for more in ({}, BUDGET)])
    for plan in cut:
        assert "cut the search" in plan["warning"]
        assert {shard["table"] for shard in plan["shards"]} == {table["name"] for table in many}


def test_a_version_of_autoshard_is_answered_by_its_name_and_predicts_no_cost_of_a_step(tmp_path):
    placer = make_placer(start_training(pool_of(24), with_algorithm(TINY, "autoshard"), seed=0))
    trained.save_placer(placer, tmp_path / "placer")
    served = PlacerModel()
    served.load_context(
        SimpleNamespace(artifacts={"placer": str(tmp_path / "placer")}, model_config={"version": "autoshard:2"})
    )
    plan = answer(served)
    assert plan["placer"] == "autoshard 2"
    assert {shard["table"] for shard in plan["shards"]} == {"users", "items", "words"}
    assert plan["predicted"]["overall_ms"] is None


def test_a_wrong_field_is_named(model):
    with pytest.raises(MlflowException, match="batch_size"):
        answer(model, batch_size=0)


def test_a_field_with_an_endless_name_is_named_in_brief(model):
    with pytest.raises(MlflowException, match=r"xxx\.\.\.: Extra inputs are not permitted") as raised:
        answer(model, **{"x" * 2_000: 1})
    assert len(str(raised.value)) < 500
