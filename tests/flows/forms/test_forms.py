from types import SimpleNamespace

import pytest
import yaml
from prefect.exceptions import ParameterTypeError, SignatureMismatchError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from pydantic import ValidationError

from dreamshard.recipes import RECIPES
from dreamshard.training import TRAINING_ALGORITHMS
from flows.forms.form import configure
from flows.forms.options import RecipeOptions, RetrainingOptions, RetrainOptions
from flows.retrain import retrain
from flows.servers.deployment import DECLARED, settings_of

FORM = parameter_schema(retrain).model_dump_for_openapi()
FLOWS = [deployment["entrypoint"] for deployment in yaml.safe_load(DECLARED.read_text())["deployments"]]
SMOKE = RECIPES["smoke"]


def refused(**values) -> dict[str, str]:
    """What Prefect says of these values, by field."""
    return {error.path[-1]: error.message for error in validate(values, FORM)}


def chosen(**options):
    return configure(RetrainOptions(recipe="smoke", **options))


@pytest.mark.parametrize("entrypoint", FLOWS)
def test_deployments_load_flows_whose_fields_are_described(entrypoint):
    flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    assert flow.name == entrypoint.rpartition(".")[2]
    assert all(field["description"] for field in parameter_schema(flow).properties.values())


def test_bounds_fit_the_page_and_an_empty_field_is_none():
    wanted = {"type": "integer", "title": "batch_size", "allOf": [{"minimum": 1, "maximum": 2**24}]}
    assert FORM["properties"]["batch_size"].items() >= wanted.items()
    assert refused() == {}
    assert RetrainOptions(iterations=None, testbed="") == RetrainOptions()


def test_wrong_values_are_refused_with_what_is_wrong():
    assert refused(seed=-1, memory_gb=0, devices=4097) == {
        "seed": "-1 is less than the minimum of 0",
        "memory_gb": "0 is less than or equal to the minimum of 0",
        "devices": "4097 is greater than the maximum of 4096",
    }
    assert "'huge' is not one of ['default'" in refused(recipe="huge")["recipe"]
    assert len(refused(testbed="simulated:a1000", source="m.py:make", current="p.json")) == 3
    for source in ("s3://b/t/", "meta-dlrm-2021", "models.dlrm:make", "/m.py:make"):
        assert refused(testbed="simulated:a100", source=source, current="/p.json") == {}
    for wrong in ({"iterations": 0}, {"recipes": "smoke"}, {"exchange_devices": [1]}):
        with pytest.raises(ValidationError):
            RetrainOptions(**wrong)


def test_only_options_that_are_filled_in_override_the_recipe():
    assert configure(RecipeOptions(recipe="smoke")) == chosen() == SMOKE
    made = chosen(testbed="simulated", devices=4, memory_gb=1.5, iterations=3, reserve_gb=0.5, devices_per_host=8)
    assert (made.testbed, made.training.iterations, made.training.warm_iterations) == ("simulated", 3, 3)
    assert (made.tasks.num_devices, made.tasks.devices_per_host) == (4, 8)
    assert (made.tasks.memory_bytes, made.tasks.reserve_bytes) == (3 * 2**29, 2**29)
    assert made.tasks.tables_per_task == SMOKE.tasks.tables_per_task
    assert chosen(exchange_devices=[128, 64, 64]).exchange_devices == (64, 128)


@pytest.mark.parametrize("algorithm", TRAINING_ALGORITHMS)
def test_an_algorithm_replaces_the_recipes_and_keeps_its_numbers(algorithm: str):
    made = chosen(algorithm=algorithm, iterations=3).training
    assert (made.algorithm, made.iterations) == (algorithm, 3)
    assert made.placements_per_iteration == SMOKE.training.placements_per_iteration
    assert configure(RetrainOptions(recipe="paper_50x4")).training.algorithm == "paper"


def test_sources_become_absolute_and_batches_need_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workload = chosen(source="m.py:make", batches="d.py:batches").workload
    assert (workload.source, workload.batches) == (f"{tmp_path}/m.py:make", f"{tmp_path}/d.py:batches")
    assert chosen(source="meta-dlrm-2021").workload.source == "meta-dlrm-2021"
    with pytest.raises(ValueError):
        chosen(source="tables.csv", batches="d.py:batches")


def test_a_flow_takes_its_fields_as_parameters_of_their_types():
    taken = retrain.validate_parameters({"devices": 8, "seed": 0, "memory_gb": 2})
    assert (taken["devices"], taken["seed"], taken["memory_gb"], taken["source"]) == (8, 0, 2.0, None)
    for wrong in ({"devices": 0}, {"options": {"devices": 8}}, {"model": "Ads.1"}):
        with pytest.raises((ParameterTypeError, SignatureMismatchError)):
            retrain.validate_parameters(wrong)


KNOWN = {"ads": {"model": "ads", "source": "/a/ads.csv", "devices": 4, "seed": 3}}


@pytest.mark.parametrize(
    ("given", "known", "settings"),
    [
        ({}, KNOWN, KNOWN),
        ({}, {}, {"meta-dlrm-2021": {"model": "meta-dlrm-2021"}}),
        ({"seed": 0}, KNOWN, {"ads": {**KNOWN["ads"], "seed": 0}}),
        ({"source": "/b/feed.csv"}, KNOWN, {"feed": {"model": "feed", "source": "/b/feed.csv"}}),
        ({"model": "ads", "source": "/b/ads.csv"}, KNOWN, {"ads": {**KNOWN["ads"], "source": "/b/ads.csv"}}),
        ({"source": "/b/ads.csv"}, KNOWN, None),
        ({"devices": 8}, KNOWN | {"feed": {}}, None),
    ],
)
def test_options_that_are_given_change_the_setting_of_one_model(given, known, settings):
    class Client:
        def read_deployments(self, **_):
            return [SimpleNamespace(name=name, parameters=parameters) for name, parameters in known.items()]

    if settings is None:
        with pytest.raises(ValueError, match="--model"):
            settings_of(Client(), RetrainingOptions(**given))
    else:
        assert settings_of(Client(), RetrainingOptions(**given)) == settings
