import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from uuid import uuid4

import httpx
import pytest

from flows.servers import deployment
from tests.flows.servers_up import until
from tests.helpers.ports import free_port
from tests.helpers.receivers import Webhook, receiving

pytestmark = pytest.mark.long

AT_ONCE = {
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
}
LONGEST = timedelta(seconds=10)  # the least that Prefect takes


@pytest.fixture
def client(tmp_path):
    """A client of a server that looks every second."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = f"http://127.0.0.1:{(port := free_port())}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with subprocess.Popen(command, env={**os.environ, **AT_ONCE, "PREFECT_HOME": str(tmp_path)}) as process:
        try:
            until(lambda: is_up(f"{url}/health"), 300)
            with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
                client.url = url
                yield client
        finally:
            process.terminate()


def is_up(url):
    with suppress(httpx.TransportError):
        return httpx.get(url).is_success


def heartbeat(client, run):
    """What a flow under a worker says every three minutes."""
    tag = {"prefect.resource.id": "prefect.tag.dreamshard", "prefect.resource.role": "tag"}
    event = {
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}"},
        "related": [tag],
        "id": str(uuid4()),
    }
    httpx.post(f"{client.url}/events", json=[event]).raise_for_status()


def test_silent_runs_are_crashed_and_late_ones_are_told(client):
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.states import Running

    made, watching = (
        client.create_deployment(flow_id=client.create_flow_from_name(name), name=name, tags=["dreamshard"])
        for name in ("retrain", "watch")
    )
    with receiving(HTTPServer(("127.0.0.1", 0), Webhook)) as (port, messages):
        content = {"subject": "{{subject}}", "body": "{{body}}"}
        block = CustomWebhookNotificationBlock(name="team", url=f"http://127.0.0.1:{port}", json_data=content)
        for automation in deployment.automations(block.save("team")):
            automation.trigger.within = min(automation.trigger.within, LONGEST)
            automation.create()
        silent, alive = (client.create_flow_run_from_deployment(made, tags=["dreamshard"]) for _ in range(2))
        for run in (silent, alive):
            client.set_flow_run_state(run.id, Running())
        time.sleep(1)
        client.create_flow_run_from_deployment(watching)  # which no worker takes
        heartbeat(client, silent)

        def all_noticed():
            heartbeat(client, alive)
            time.sleep(1)
            subjects = {json.loads(message)["subject"].partition(" (")[0] for message in messages}
            return subjects == {"dreamshard: no worker takes scheduled runs", "dreamshard: retrain crashed"}

        until(all_noticed, 120)
        states = [client.read_flow_run(run.id).state for run in (silent, alive)]
    assert [state.type for state in states] == ["CRASHED", "RUNNING"], "it sends heartbeats"
    assert states[0].message.startswith("its process has sent no heartbeat")
