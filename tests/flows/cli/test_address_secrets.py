"""Addresses with a secret are refused at the first door of every way in, before anything keeps them."""

import importlib
import os
import subprocess
import sys

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from dreamshard.workloads import WorkloadConfig
from flows.cli.app import check_words, main, sentence
from flows.ingest import ingest
from flows.runtime.sources import with_absolute_paths
from flows.servers.scheduled_setting import settled
from storage.schedule import Schedule, write_schedule
from storage.settings import Settings
from tests.flows.forms.test_form import STAGES

SECRET = "that-nobody-may-read"
WITH_PASSWORD = f"http://bob:{SECRET}@127.0.0.1:9/ok.csv"
SIGNED = f"https://127.0.0.1:9/ok.csv?X-Amz-Signature={SECRET}"
BOTH = pytest.mark.parametrize("address", [WITH_PASSWORD, SIGNED])
DOOR = r"has an address with a .*AWS_SECRET_ACCESS_KEY.*docs/team\.md"


@BOTH
@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "{}"),
        ("run", "--source", "{}"),
        ("run", "--current={}"),
        ("train", "--testbed", "simulated:{}"),
        ("watch", "--source={}"),
        ("up", "--source", "{}"),
        ("deploy", "--batches", "{}"),
        ("place", "{}", "--devices", "2", "--memory-gb", "1"),
        ("place", "tables.csv", "--constraints", "{}"),
        ("explain", "plan.json", "{}"),
        ("what-if", "tables.csv", "--hardware", "a100:8,{}:8"),
        ("promote", "1", "--reason", "see {}"),
        ("run", "--seed", "{}"),
    ],
)
def test_every_command_refuses_an_address_with_a_secret_and_makes_no_home(words, address, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which the command replaces
    home = tmp_path / "home"
    with pytest.raises(ValueError, match=DOOR) as refused:
        main([*(word.format(address) for word in words), "--home", str(home)])
    assert SECRET not in sentence(refused.value)
    assert not home.exists()


def test_what_is_kept_nowhere_or_as_a_secret_is_taken():
    check_words(["sql", f"select * from tables where source = '{WITH_PASSWORD}'"])
    check_words(["up", "--notify", "mailtos://USER:PASSWORD@smtp.example.com?from=a@example.com"])
    check_words(["up", "--notify=https://hooks.example.com/x?token=1"])
    check_words(["ingest", "s3://bucket/tables/", "--home", "/data/ada@home"])


@BOTH
def test_every_text_of_every_form_is_refused_by_prefects_server(address):
    for stage in STAGES:
        schema = parameter_schema(getattr(importlib.import_module(f"flows.{stage}"), stage)).model_dump_for_openapi()
        for name, field in schema["properties"].items():
            value = [address] if field.get("type") == "array" else address
            assert [error for error in validate({name: value}, schema) if list(error.path)[:1] == [name]], (stage, name)


@BOTH
def test_a_flow_that_is_called_refuses_it_before_its_run_exists(address, monkeypatch):
    monkeypatch.setattr("prefect.flow_engine.run_flow", lambda **_: pytest.fail("a run was made"))
    with pytest.raises(ValueError, match=DOOR):
        ingest(source=address)
    with pytest.raises(ValueError, match=DOOR):
        ingest("smoke", address)


@BOTH
def test_the_source_of_the_schedule_is_refused_wherever_it_comes_from(address, tmp_path):
    with pytest.raises(ValueError, match=rf"^--source {DOOR}"):
        settled({"source": address}, tmp_path, {})
    with pytest.raises(ValueError, match=rf"^DREAMSHARD_SOURCE {DOOR}"):
        settled({}, tmp_path, {"DREAMSHARD_SOURCE": address})
    write_schedule(tmp_path, Schedule(source=address))
    with pytest.raises(ValueError, match=f"^--source, as the home keeps it from earlier, {DOOR}"):
        settled({}, tmp_path, {})
    assert settled({"source": "s3://bucket/tables"}, tmp_path, {})[0].source == "s3://bucket/tables"


@BOTH
def test_sources_and_stores_are_refused_in_the_library_too(address, tmp_path):
    with pytest.raises(ValueError, match=DOOR):
        with_absolute_paths(WorkloadConfig(source=address))
    for variable in ("DREAMSHARD_STORE", "DREAMSHARD_ARTIFACTS"):
        with pytest.raises(ValueError, match=f"^{variable} {DOOR}"):
            Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path), variable: address})


@pytest.mark.slow
@pytest.mark.parametrize("command", [("models",), ("doctor",), ("models", "--debug")])
def test_addresses_of_servers_are_shown_without_their_passwords(command, tmp_path):
    from tests.helpers.ports import free_port

    nobody = f"http://ada:{SECRET}@127.0.0.1:{free_port()}"
    away = {"MLFLOW_TRACKING_URI": nobody, "PREFECT_API_URL": f"{nobody}/api", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run(
        [sys.executable, "-c", "from flows.cli.app import main; main()", *command],
        env={**os.environ, "DREAMSHARD_HOME": str(tmp_path / "home"), **away},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ada:...@127.0.0.1" in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
