from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from dreamshard.training import save_placer, with_algorithm
from storage.mlflow_store.placer_model import PlacerModel
from tests.helpers.tables import pool_of
from tests.helpers.trained import TINY, learnt, learnt_placer, make_placer, start_training

TABLES = [{"name": name, "rows": 1000, "dim": 64, "pooling_factor": 5.0} for name in ("users", "items", "words")]


def served(placer, folder):
    save_placer(placer, folder)
    model = PlacerModel()
    model.load_context(SimpleNamespace(artifacts={"placer": str(folder)}))
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return served(learnt_placer(), tmp_path_factory.mktemp("version") / "placer")


def answer(model, **fields):
    [plan] = model.predict([{"num_devices": 2, "memory_gb": 1.0, "tables": TABLES, "budget_ms": 0.0, **fields}])
    return plan.model_dump()


def test_an_answer_names_its_costs_and_warns_of_other_settings(model):
    plan, other = answer(model), answer(model, hardware="h100", precision="fp16", batch_size=1024)
    assert plan["costs_of"] == learnt().cost_network.measured_on.model_dump(mode="json")
    assert (plan["differs_in"], plan["warning"]) == ([], "")
    assert other["differs_in"] == ["hardware", "precision", "batch_size"]
    assert "not of h100" in other["warning"]
    assert other["predicted"]["overall_ms"] < plan["predicted"]["overall_ms"]


def test_a_version_of_autoshard_predicts_no_cost_of_a_step(tmp_path):
    placer = make_placer(start_training(pool_of(24), with_algorithm(TINY, "autoshard"), seed=0))
    plan = answer(served(placer, tmp_path / "placer"))
    assert plan["placer"] == "autoshard"
    assert plan["tables"].keys() == {"users", "items", "words"}
    assert plan["predicted"]["overall_ms"] is None


@pytest.mark.parametrize("wrong", [{"memory_gb": 1e-5}, {"tables": [TABLES[0], TABLES[0]]}])
def test_what_no_type_tells_is_an_error_of_the_request(model, wrong):
    with pytest.raises(MlflowException) as refused:
        answer(model, **wrong)
    assert refused.value.get_http_status_code() == 400
