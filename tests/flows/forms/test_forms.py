import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from pydantic import ValidationError

from dreamshard.recipes import RECIPES
from dreamshard.training.config import ALGORITHMS
from flows.forms import form
from flows.forms.configuration import configure, kept_setting
from flows.forms.form import checked, with_setting
from flows.forms.options import CompareOptions, RecipeOptions, RetrainOptions, StageOptions
from flows.retrain import retrain
from storage.settings import Settings

FORM = parameter_schema(retrain).model_dump_for_openapi()
FLOWS = ("ingest", "profile", "train", "evaluate", "promote", "compare", "place", "learn", "retrain", "watch", "prune")
SMOKE = RECIPES["smoke"]


def refused(**values) -> dict[str, str]:
    """What Prefect says of these values, by field."""
    return {error.path[-1]: error.message for error in validate({"options": values}, FORM)}


def chosen(**options):
    return configure(RetrainOptions(recipe="smoke", **options))


@pytest.mark.parametrize("name", FLOWS)
def test_deployments_load_flows_whose_fields_are_described(name):
    flow = load_flow_from_entrypoint(f"flows.{name}.{name}", use_placeholder_flow=False)
    assert flow.name == name
    (drawn,) = parameter_schema(flow).definitions.values()
    assert all(field["title"][0].isupper() and field["description"] for field in drawn["properties"].values())


def test_bounds_fit_the_page_and_an_empty_field_is_none():
    fields = FORM["definitions"]["RetrainOptions"]["properties"]
    wanted = {"type": "integer", "title": "Batch size", "allOf": [{"minimum": 1, "maximum": 2**24}]}
    assert fields["batch_size"].items() >= wanted.items()
    assert "default" not in fields["iterations"]
    assert refused(iterations=None, testbed=None) == refused() == {}
    assert RetrainOptions(iterations=None, testbed="") == RetrainOptions()


def test_wrong_values_are_refused_with_what_is_wrong():
    assert refused(seed=-1, memory_gb=0, devices=4097) == {
        "seed": "-1 is less than the minimum of 0",
        "memory_gb": "0 is less than or equal to the minimum of 0",
        "devices": "4097 is greater than the maximum of 4096",
    }
    assert "'huge' is not one of ['default'" in refused(recipe="huge")["recipe"]
    for wrong in ({"iterations": 0}, {"recipes": "smoke"}, {"exchange_devices": [1]}):
        with pytest.raises(ValidationError):
            RetrainOptions(**wrong)


def test_only_options_that_are_filled_in_override_the_recipe():
    assert configure(RecipeOptions(recipe="smoke")) == chosen() == SMOKE
    own = chosen(testbed="simulated", devices=4, memory_gb=1.5, iterations=3, reserve_gb=0.5, devices_per_host=8)
    assert (own.testbed, own.training.iterations, own.training.warm_iterations) == ("simulated", 3, 3)
    assert (own.tasks.num_devices, own.tasks.devices_per_host) == (4, 8)
    assert (own.tasks.memory_bytes, own.tasks.reserve_bytes) == (3 * 2**29, 2**29)
    assert own.tasks.tables_per_task == SMOKE.tasks.tables_per_task
    assert chosen(exchange_devices=[128, 64, 64]).measure.exchange_devices == (64, 128)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_replaces_the_recipes_and_keeps_its_numbers(algorithm: str):
    own = chosen(algorithm=algorithm, iterations=3).training
    assert (own.algorithm, own.iterations) == (algorithm, 3)
    assert own.placements_per_iteration == SMOKE.training.placements_per_iteration
    assert configure(RetrainOptions(recipe="paper_50x4")).training.algorithm == "paper"


def test_sources_become_absolute_and_batches_need_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workload = chosen(source="m.py:make", batches="d.py:batches").workload
    assert (workload.source, workload.batches) == (f"{tmp_path}/m.py:make", f"{tmp_path}/d.py:batches")
    assert chosen(source="meta-dlrm-2021").workload.source == "meta-dlrm-2021"
    with pytest.raises(ValueError):
        chosen(source="tables.csv", batches="d.py:batches")


@pytest.mark.parametrize("wrong", [{"num_devices": 8}, {"devices": 0}, {"mode": "both"}, [8]])
def test_a_wrong_setting_says_where_and_what_to_correct(wrong):
    with pytest.raises(ValueError):
        checked(wrong)


def test_the_store_keeps_a_copy_of_the_setting_for_commands(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setattr(form.Variable, "get", lambda *_, **__: {"devices": 4})
    assert kept_setting(Settings.from_environment()) == {}
    assert form.read_setting() == kept_setting(Settings.from_environment()) == {"devices": 4}


def test_empty_fields_of_a_training_take_the_setting(monkeypatch):
    team = {"source": "/tables.csv", "devices": 8, "algorithm": "paper"}
    assert checked(team | {"source": "/tmp/./tables.csv"})["source"] == "/tmp/tables.csv"
    monkeypatch.setattr(form, "read_setting", lambda: team)
    monkeypatch.setattr(form.FlowRunContext, "get", lambda: "a run")
    taken = with_setting(RetrainOptions(devices=4, seed=1))
    assert taken == RetrainOptions(source="/tables.csv", devices=4, seed=1, algorithm="paper")
    assert with_setting(StageOptions()) == StageOptions(devices=8, algorithm="paper")
    assert with_setting(CompareOptions(versions=["1", "2"])) == CompareOptions(versions=["1", "2"])
