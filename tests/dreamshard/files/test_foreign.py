"""Content of other people: one sentence for whatever a library raises."""

import json
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from dreamshard.constraints import parse_constraints
from dreamshard.files.foreign import (
    InputError,
    brief,
    json_content,
    may_pass,
    reading,
    store_failures,
    yaml_content,
)
from dreamshard.plan import parse_plan
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import WorkloadConfig, open_workload
from tests.helpers.tables import tables_of

ADVICE = "so it cannot be used; write it again"


@pytest.mark.parametrize(
    "error", [KeyError("x"), OverflowError("y"), AssertionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "z")]
)
def test_what_a_library_raises_is_one_sentence_with_the_error_as_cause(error: Exception):
    with (
        pytest.raises(ValueError, match=r"^f is not a plan \(\w+.*\), so it cannot be used; write it again$") as raised,
        reading("f", "is not a plan", ADVICE),
    ):
        raise error
    assert raised.value.__cause__ is error


def test_an_input_error_passes_unchanged_from_however_deep_and_another_value_error_is_made_a_sentence():
    wrong, unforeseen = InputError("f, line 3, is wrong"), ValueError("too many values to unpack")
    for error, said in (
        (wrong, "^f, line 3, is wrong$"),
        (unforeseen, r"f is not a plan \(ValueError: too many values"),
    ):
        with (
            pytest.raises(InputError, match=said),
            reading("a folder", "holds no plans", ADVICE),
            reading("f", "is not a plan", ADVICE),
        ):
            raise error


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "[NaN]", "\ufeff{"])
def test_json_that_is_damaged_is_refused(text: str):
    with pytest.raises(InputError, match="f is not JSON"):
        json_content(text, "f", "is not JSON", ADVICE)


@pytest.mark.parametrize("text", ["- " * 10_000, "&a [*b]", "!!python/object/apply:os.system [id]"])
def test_yaml_that_is_damaged_or_would_run_code_is_refused(text: str):
    with pytest.raises(InputError, match="f is not YAML"):
        yaml_content(text, "f", "is not YAML", ADVICE)


def test_a_long_value_is_shown_in_brief():
    assert len(brief("x" * 10_000)) <= 110
    assert brief([1, 2]) == "[1, 2]"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_devices", 100_000_000),
        ("num_devices", 1e999),
        ("num_devices", "2"),
        ("devices_per_host", 2**40),
        ("shards", [{"table": "t", "device": "zero", "column_start": 0, "column_end": 4}]),
        ("shards", [{"table": ["t"], "device": 0, "column_start": 0, "column_end": 4}]),
        ("shards", [{"table": "t", "device": 0, "column_start": 0, "column_end": 2**60}]),
        ("rows", {"t": -1}),
        ("differs_in", [[]]),
    ],
)
def test_a_wrong_field_of_a_plan_is_named(field: str, value: object):
    with pytest.raises(ValueError, match=r"^p\.json is not a plan"):
        parse_plan(json.dumps({"num_devices": 2, "shards": [], field: value}), "p.json")


def test_devices_beyond_any_cluster_are_refused_before_anything_is_made():
    with pytest.raises(ValueError, match="asks for 100000000 devices; a placement has 1 to 4096"):
        PlacementTask(tables_of([10]), 100_000_000, 2**30)
    with pytest.raises(ValueError, match="100000000 devices per host"):
        PlacementTask(tables_of([10]), 2, 2**30, devices_per_host=100_000_000)


def test_lookups_that_no_memory_holds_are_not_drawn(tmp_path: Path):
    file = tmp_path / "t.csv"
    file.write_text("name,rows,dim,pooling_factor\nt,1000,4,900000\n")
    with pytest.raises(ValueError, match=r"5\.9e\+10 in a batch of 65,536, more than the 134,217,728 that are drawn"):
        open_workload(WorkloadConfig(source=str(file), dim=None)).table(0)


def test_constraints_beyond_use_are_refused():
    for text in ("memory_gb: {0: 1.0e+300}", "reserve_gb: .inf", "memory_gb: {0: 99999999999999999999}"):
        with pytest.raises(ValueError, match="the constraints "):
            parse_constraints(text, ["t"], 4)


ADDRESS = "http://127.0.0.1:1/team"


def answered(status: int) -> ClientError:
    return ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (EndpointConnectionError(endpoint_url=ADDRESS), True),
        (ReadTimeoutError(endpoint_url=ADDRESS), True),
        (answered(503), True),
        (answered(429), True),
        (answered(404), False),
        (answered(403), False),
        (NoCredentialsError(), False),
        (ConnectionResetError("by peer"), True),
        (FileNotFoundError("a table"), False),
        (ValueError("a table"), False),
    ],
)
def test_a_store_that_is_away_may_be_back_and_one_that_refuses_will_go_on_refusing(error: Exception, passes: bool):
    assert may_pass(error) is passes


def test_all_that_a_store_raises_is_its_failure_and_wrong_input_is_not():
    assert issubclass(EndpointConnectionError, store_failures())
    assert issubclass(ClientError, store_failures())
    assert issubclass(PermissionError, store_failures())
    assert not issubclass(ValueError, store_failures())
