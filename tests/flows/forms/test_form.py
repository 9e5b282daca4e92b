import importlib

import pytest
from prefect.exceptions import ParameterTypeError, SignatureMismatchError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows.forms.form import deployed, field_schema
from flows.forms.options import BatchSize, StageOptions
from flows.retrain import retrain

FORM = parameter_schema(retrain).model_dump_for_openapi()
STAGES = [
    "ingest",
    "profile",
    "train",
    "evaluate",
    "promote",
    "compare",
    "place",
    "retrain",
    "watch",
    "prune",
]


def refused(**values):
    """What Prefect says of these values, by field."""
    return {error.path[0]: error.message for error in validate(values, FORM)}


@pytest.mark.parametrize("stage", STAGES)
def test_every_field_of_every_form_has_a_title_and_a_description(stage):
    fields = parameter_schema(getattr(importlib.import_module(f"flows.{stage}"), stage)).properties
    assert all(field["title"] != name and field["description"] for name, field in fields.items())


def test_bounds_stand_where_the_page_keeps_them_and_an_empty_field_is_none():
    wanted = {"type": "integer", "title": "Batch size", "allOf": [{"minimum": 1, "maximum": 2**24}]}
    assert field_schema(BatchSize).items() >= wanted.items()
    assert "default" not in FORM["properties"]["iterations"]
    assert refused(iterations=None, testbed=None) == refused() == {}


def test_a_flow_is_called_with_the_fields_of_its_options_and_an_empty_text_is_none():
    @deployed("echo")
    def echo(options: StageOptions) -> StageOptions:
        """Return the options."""
        return options

    assert echo.name == "echo"
    assert echo.description == "Return the options."
    assert echo.fn(seed=3, testbed="") == StageOptions(seed=3)
    assert list(echo.parameters.properties) == [
        *("recipe", "seed", "testbed", "dataset", "num_devices", "devices_per_host", "memory_gb", "reserve_gb"),
        *("tables_per_task", "mode", "exchange_devices", "algorithm"),
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_a_deployment_loads_its_flow_by_entrypoint_with_the_form_of_its_options(stage):
    flow = load_flow_from_entrypoint(f"flows.{stage}.{stage}", use_placeholder_flow=False)
    assert parameter_schema(flow).properties.keys() == flow.parameters.properties.keys()
    assert flow.name == stage


def test_wrong_values_are_refused_with_what_is_wrong():
    assert refused(seed=-1, memory_gb=0, num_devices=4097) == {
        "seed": "-1 is less than the minimum of 0",
        "memory_gb": "0 is less than or equal to the minimum of 0",
        "num_devices": "4097 is greater than the maximum of 4096",
    }
    assert "'huge' is not one of ['default'" in refused(recipe="huge")["recipe"]


def test_a_call_still_checks_its_values_itself():
    assert retrain.validate_parameters({"iterations": None})["iterations"] is None
    with pytest.raises(ParameterTypeError, match="greater than or equal to 1"):
        retrain.validate_parameters({"iterations": 0})
    with pytest.raises(SignatureMismatchError, match="recipes"):
        retrain.validate_parameters({"recipes": "smoke"})
