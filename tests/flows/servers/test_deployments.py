"""What is sent to Prefect's server for a new deployment and for one that was edited; no server is asked."""

from datetime import timedelta
from unittest.mock import MagicMock
from uuid import uuid4

import jinja2
import pytest
from prefect.client.schemas.responses import DeploymentResponse

from flows.reports.failure_sentence import TEMPLATE, failure_sentence
from flows.servers import automations, deployment, deployments
from flows.servers.edits import record_of
from flows.servers.wanted import declared_deployments
from storage.schedule import Schedule
from tests.flows.servers_up import ENVIRONMENT


@pytest.fixture(scope="module")
def retrain():
    return next(each for each in declared_deployments(Schedule(memory_gb=2.0)) if each.name == "retrain")


def created(wanted) -> dict:
    client = MagicMock()
    deployments._create(client, wanted, uuid4())
    return client.create_deployment.call_args.kwargs


def on_the_server(wanted, **other) -> DeploymentResponse:
    sent = created(wanted)
    names = ("name", "version", "entrypoint", "parameters", "parameter_openapi_schema", "description", "tags")
    same = {name: sent[name] for name in (*names, "job_variables", "work_pool_name", "work_queue_name")}
    return DeploymentResponse(id=uuid4(), flow_id=uuid4(), **{**same, **other})


def updated(wanted, current, record=None, given=()):
    """What is sent, and the parameters and job variables that stay as edited."""
    client = MagicMock()
    record = deployments._overruling(record or record_of(wanted.facts()), given)
    _, edits = deployments._update(client, wanted, current, record)
    sent = [call.args[1] for call in client.update_deployment.call_args_list]
    names = {edit.name for edit in edits}
    return (sent[0] if sent else None), {name for name in names if name.startswith(("job_variables", "parameters."))}


def test_hooks_of_cancelled_runs_find_this_project_from_the_first_deployment_on(retrain):
    assert created(retrain)["job_variables"] == ENVIRONMENT
    assert "job_variables" not in updated(retrain, on_the_server(retrain))[1]
    _, edits = updated(retrain, on_the_server(retrain, job_variables={"image": "mine"}))
    assert edits == {"job_variables"}


def test_an_option_that_is_typed_again_with_the_same_value_wins_over_an_edit(retrain):
    edited = on_the_server(retrain, parameters={**retrain.parameters, "memory_gb": 4, "num_devices": 8})
    assert updated(retrain, edited)[1] == {"parameters.memory_gb", "parameters.num_devices"}
    sent, edits = updated(retrain, edited, given=["memory_gb"])
    assert (sent.parameters["memory_gb"], edits) == (2.0, {"parameters.num_devices"})
    sent, edits = updated(retrain, edited, given=["num_devices"])
    assert ("num_devices" in sent.parameters, edits) == (False, {"parameters.memory_gb"}), "an empty option unsets it"


def test_each_failed_retraining_is_told_and_a_failing_watch_once_a_day():
    retraining, watching = (automations.on_failure(name, uuid4(), None).trigger for name in ("retrain", "watch"))
    assert (retraining.within, retraining.for_each) == (timedelta(0), {"prefect.resource.id"})
    assert (watching.within, watching.for_each) == (timedelta(days=1), {"related:deployment:prefect.resource.id"})


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Flow run encountered an exception: ValueError: tables.csv: row 3 is wrong", "tables.csv: row 3 is wrong"),
        ("Flow run encountered an exception: KeyError", "KeyError"),
        ("tables.csv: row 3 is wrong", "tables.csv: row 3 is wrong"),
        ("Process exited: status 1", "Process exited: status 1"),
    ],
)
def test_prefects_words_are_left_out_of_a_message_and_nothing_else(message, sentence):
    assert failure_sentence(message) == sentence
    run = {"state": {"message": message}}
    assert jinja2.Template(TEMPLATE).render(flow_run=run) == sentence, "as Prefect's server renders it"


def test_a_value_edited_in_prefect_that_cannot_work_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{t},195312,64,2\n" for t in range(60)))
    edited = Schedule(source=str(tables), memory_gb=0.001, mode="fixed", num_devices=2)
    (warning,) = deployment._fit_as_edited(edited, measures_here=True)
    assert warning.startswith("warning: as edited in Prefect, runs will fail: the scheduled flows could not train on")
