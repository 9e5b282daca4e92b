"""Flow runs that killed processes left as running on a server that stays."""

import os
import subprocess
import sys
import time

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.context import FlowRunContext

from flows.cli.in_process import in_process
from flows.forms.flow_run_owners import GONE, end_abandoned, labelled
from storage.mlflow_store import process_tags

RUNS_FOR_LONG = """
import time
from prefect import flow, task
from prefect.context import FlowRunContext
from flows.forms.flow_run_owners import labelled

@task
def wait():
    time.sleep(600)

def body():
    print(FlowRunContext.get().flow_run.id, flush=True)
    wait()

flow(name="long")(labelled(body))()
"""


def test_a_flow_run_of_a_killed_process_of_this_host_is_marked_crashed_and_no_other():
    def body() -> list[str]:
        context = FlowRunContext.get()
        assert context is not None
        with get_client(sync_client=True) as client:
            api, own = str(client.api_url), context.flow_run.id
            elsewhere = client.create_flow_run(flow(lambda: None, name="elsewhere"))
            killed = one_that_is_killed(api, client)
            gone = client.read_flow_run(killed)
            assert gone.state_name == "Running", "nobody says that a killed process has ended"
            assert [each.state_name for each in tasks_of(client, killed)] == ["Running"]
            client.update_flow_run_labels(elsewhere.id, {**gone.labels, process_tags.HOST: "another host"})
            client.set_flow_run_state(elsewhere.id, gone.state, force=True)
            assert end_abandoned() == 1
            assert end_abandoned() == 0
            ended = client.read_flow_run(killed)
            assert (ended.state_name, ended.state.message) == ("Crashed", GONE)
            (of_task,) = tasks_of(client, killed)
            assert (of_task.state_name, of_task.state.message) == ("Crashed", GONE)
            return [client.read_flow_run(run).state_name for run in (own, elsewhere.id)]

    with in_process():
        assert flow(name="alive")(labelled(body))() == ["Running", "Running"]


def one_that_is_killed(api: str, client: SyncPrefectClient) -> str:
    """The id of a flow run whose process was killed while it ran a task."""
    environment = {**os.environ, "PREFECT_API_URL": api}
    with subprocess.Popen([sys.executable, "-c", RUNS_FOR_LONG], env=environment, stdout=subprocess.PIPE) as process:
        run = process.stdout.readline().decode().strip()
        assert run, "it ended before its flow began"
        until = time.monotonic() + 60
        while [each.state_name for each in tasks_of(client, run)] != ["Running"] and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
    return run


def tasks_of(client: SyncPrefectClient, run: str) -> list[TaskRun]:
    return client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])))
