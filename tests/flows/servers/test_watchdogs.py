"""Prefect's server ends what is silent and tells what nobody else would: automations on a real server, with short times."""

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from uuid import uuid4

import pytest

from flows.servers import notifications, watchdogs
from flows.servers.processes import child_process, wait_until_healthy
from tests.flows.servers_up import until
from tests.helpers.ports import free_port
from tests.helpers.receivers import Webhook, receiving

pytestmark = pytest.mark.long

AT_ONCE = {
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
}
SHORT = timedelta(seconds=10)  # the least that Prefect takes


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of a server that looks every second."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    port = free_port()
    for name, value in (AT_ONCE | {"PREFECT_HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with child_process("prefect", command, os.environ, tmp_path) as process:
        wait_until_healthy(f"http://127.0.0.1:{port}/api/health", process, tmp_path / "prefect.log")
        with (
            temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
            get_client(sync_client=True) as client,
        ):
            yield client


def heartbeat(client, run):
    """What a flow under a worker says every three minutes."""
    related = [
        {"prefect.resource.id": f"prefect.deployment.{run.deployment_id}", "prefect.resource.role": "deployment"}
    ]
    event = {
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}"},
        "related": related,
        "id": str(uuid4()),
    }
    client._client.post("/events", json=[event]).raise_for_status()


def test_runs_that_fall_silent_last_too_long_or_are_never_taken_are_noticed(client, monkeypatch):
    from prefect.states import Completed, Running

    monkeypatch.setattr(watchdogs, "LONGEST", {"watch": SHORT, "retrain": SHORT})
    monkeypatch.setattr(watchdogs, "LONGEST_WAIT", SHORT)
    ids = {
        name: client.create_deployment(flow_id=client.create_flow_from_name(name), name=name)
        for name in ("retrain", "watch", "prune")
    }
    with receiving(HTTPServer(("127.0.0.1", 0), Webhook)) as (port, messages):
        block = notifications._saved(notifications.block_for(f"http://127.0.0.1:{port}/hook"))
        for automation in (
            watchdogs.on_silence(ids.values(), SHORT),
            watchdogs.on_overdue("watch", ids["watch"], block),
            watchdogs.on_overdue("retrain", ids["retrain"], block),
            watchdogs.on_waiting("retrain", ids["retrain"], block),
        ):
            client.create_automation(automation)
        silent, alive, mute = (client.create_flow_run_from_deployment(ids["prune"]) for _ in range(3))
        overdue, long = (client.create_flow_run_from_deployment(ids[name]) for name in ("watch", "retrain"))
        late = client.create_flow_run_from_deployment(ids["retrain"])  # which no worker takes
        for run in (silent, alive, mute, overdue, long):
            client.set_flow_run_state(run.id, Running())
        heartbeat(client, silent)

        def state(run):
            return client.read_flow_run(run.id).state

        def all_noticed():
            heartbeat(client, alive)
            time.sleep(1)
            return state(silent).type == "CRASHED" and state(overdue).type == "CANCELLING" and len(messages) >= 3

        until(all_noticed, 120)
        assert state(silent).message.startswith("nothing was heard of its process for 0.166667 minutes")
        assert [state(run).type for run in (alive, mute, long)] == ["RUNNING"] * 3, "it sends heartbeats, or never did"
        assert state(late).type == "SCHEDULED"
        client.set_flow_run_state(silent.id, Completed())
        assert state(silent).type == "COMPLETED", "a run that was only cut off from the server for long ends as it ends"
    told = {message["subject"]: message["body"] for message in map(json.loads, messages)}
    assert f"prefect.flow-run.{overdue.id}; it is cancelled" in told["dreamshard: watch takes very long"]
    assert f"prefect.flow-run.{long.id}; it goes on" in told["dreamshard: retrain takes very long"]
    assert "start a worker" in told["dreamshard: no worker takes runs of retrain"]
