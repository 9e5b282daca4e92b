"""Real servers, real deployments, a real worker: the one module that pays for them."""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import HTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from dreamshard.recipes import RECIPES
from tests.flows.servers_up import api, deployment, servers_up, until
from tests.helpers.receivers import Webhook, receiving

pytestmark = pytest.mark.timeout(900)

STAGES = {"ingest", "profile", "train", "evaluate", "promote", "compare", "place", "learn"}
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with servers_up(tmp_path_factory.mktemp("servers")) as running:
        yield running


def test_everything_is_deployed_with_the_fields_of_its_form(servers):
    found = {each["name"]: each for each in api(servers, "deployments/filter")}
    assert set(found) == {"retrain", "watch", "prune", *STAGES}
    assert all(not each["pull_steps"] for each in found.values()), "the folder of whoever deploys is none of a worker's"
    fields = found["retrain"]["parameter_openapi_schema"]["definitions"]["RetrainOptions"]["properties"]
    assert fields["recipe"]["enum"] == sorted(RECIPES)
    assert fields["seed"]["allOf"][0]["minimum"] == 0
    assert found["profile"]["global_concurrency_limit"]["limit"] == 1
    assert [each["name"] for each in api(servers, "automations/filter")] == ["dreamshard: a run's process is gone"]


def list_of_tables(servers, rows: int = 1000) -> str:
    """A list of 40 tables, the first of them with so many rows."""
    path = servers.home / "tables.csv"
    lines = [f"t{i},{rows if i == 0 else 1000 + i},{8 + 8 * (i % 3)},{1 + i % 5}\n" for i in range(40)]
    path.write_text("name,rows,dim,pooling_factor\n" + "".join(lines))
    return str(path)


def started(servers, name: str, **parameters) -> str:
    """The id of a run of a deployment, started over the API."""
    path = f"deployments/{deployment(servers, name)['id']}/create_flow_run"
    return api(servers, path, parameters={"options": parameters})["id"]


def state_of(servers, run: str) -> dict:
    return httpx.get(f"{servers.prefect}/api/flow_runs/{run}", timeout=120).json()["state"]


def completed(servers, name: str, **parameters) -> dict:
    """The result of a run, read as another program would: over the API, from the home's storage."""
    run = started(servers, name, **parameters)
    until(lambda: state_of(servers, run)["type"] in ENDED, 600)
    state = state_of(servers, run)
    assert state["type"] == "COMPLETED", (state["message"], (servers.home / "logs" / "worker.log").read_text()[-3000:])
    code = (
        "import sys, json\n"
        "from prefect.client.orchestration import get_client\n"
        "with get_client(sync_client=True) as client:\n"
        "    print(json.dumps(client.read_flow_run(sys.argv[1]).state.result()))\n"
    )
    environment = {**environment_of(servers), "PREFECT_LOCAL_STORAGE_PATH": str(servers.home / "results")}
    done = subprocess.run(
        [sys.executable, "-c", code, run], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def environment_of(servers) -> dict[str, str]:
    """Of a client on another machine."""
    return {**os.environ, "PREFECT_API_URL": f"{servers.prefect}/api", "MLFLOW_TRACKING_URI": servers.mlflow}


def mlflow_runs(servers, flow_run: str) -> list[Run]:
    """The parent runs in MLflow of a flow run."""
    tracking = MlflowClient(servers.mlflow, servers.mlflow)
    experiment = tracking.get_experiment_by_name("dreamshard").experiment_id
    return tracking.search_runs([experiment], f"tags.`prefect.flow_run_id` = '{flow_run}'")


def test_the_teams_setting_is_trained_with_to_a_champion(servers, tmp_path):
    tables = list_of_tables(servers)
    deployed(servers, tmp_path, "--recipe", "smoke", "--testbed", "simulated", "--source", tables)
    outcome = completed(servers, "retrain", iterations=1)
    assert outcome["version"].endswith("/1")
    assert outcome["testbed"].startswith("simulated")
    artifacts = {each["key"]: each for each in api(servers, "artifacts/filter")}
    assert artifacts["dreamshard-progress"]["data"] == 100.0
    assert "size_greedy" in artifacts["dreamshard-report"]["data"]
    assert servers.mlflow in artifacts["dreamshard-report"]["data"]


def test_changed_tables_start_one_retraining(servers):
    """After the run above, which trained on the list as it was."""
    list_of_tables(servers, rows=2000)
    found = completed(servers, "watch")
    assert (found["resized"], found["started"]) == (1, "tables.csv ~1"), found
    retrain = deployment(servers, "retrain")["id"]

    def retrainings():
        runs = api(servers, "flow_runs/filter", flow_runs={"deployment_id": {"any_": [retrain]}})
        return [run for run in runs if run["name"] == found["started"]]

    (run,) = retrainings()
    assert run["parent_task_run_id"], "its page and the watch's name each other"
    assert run["parameters"]["options"]["recipe"] == "smoke"
    until(lambda: state_of(servers, run["id"])["type"] == "RUNNING", 300)
    api(servers, f"flow_runs/{run['id']}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    until(lambda: state_of(servers, run["id"])["type"] == "CANCELLED", 180)
    assert {each.info.status for each in mlflow_runs(servers, run["id"])} <= {"KILLED"}
    again = completed(servers, "watch")
    assert again["retraining"] == f"Retraining {found['started']} is cancelled."
    assert len(retrainings()) == 1, "it would fail every quarter of an hour"


def deployed(servers, home: Path, *options: str) -> None:
    command = [sys.executable, "-m", "flows.cli.app", "deploy", *options]
    environment = {**environment_of(servers), "DREAMSHARD_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def edit(address: str, fields: dict) -> None:
    """Change something of Prefect's, as its own client does: again while its database is busy."""
    while (answer := httpx.patch(address, json=fields, timeout=120)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
    answer.raise_for_status()


def test_a_pause_survives_deploying_and_a_failure_notifies(servers, tmp_path):
    retrain = deployment(servers, "retrain")
    (nightly,) = retrain["schedules"]
    edit(f"{servers.prefect}/api/deployments/{retrain['id']}/schedules/{nightly['id']}", {"active": False})
    code = (
        "import sys\n"
        "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook\n"
        "Webhook(name='team', url=sys.argv[1], json_data={'subject': '{{subject}}', 'body': '{{body}}'}).save('team')\n"
    )
    with receiving(HTTPServer(("127.0.0.1", 0), Webhook)) as (port, messages):
        hook = f"http://127.0.0.1:{port}/hook"
        subprocess.run([sys.executable, "-c", code, hook], env=environment_of(servers), check=True)
        deployed(servers, tmp_path, "--memory-gb", "2", "--notify", "custom-webhook/team")
        found = deployment(servers, "retrain")
        assert [(each["active"], each["parameters"]) for each in found["schedules"]] == [
            (False, {"options": {"full": True}})
        ]
        setting = httpx.get(f"{servers.prefect}/api/variables/name/dreamshard", timeout=120).json()["value"]
        assert (setting["recipe"], setting["memory_gb"]) == ("smoke", 2.0), "fields that are not given stay"
        run = started(servers, "retrain", source="/absent/tables.csv")
        until(lambda: messages, 300)
    message = json.loads(messages[0])
    assert message["subject"].startswith("dreamshard: retrain failed")
    assert "/absent/tables.csv" in message["body"]
    assert message["body"].endswith(f"/flow-run/{run}")
    assert {each.info.status for each in mlflow_runs(servers, run)} == {"FAILED"}


def test_up_ends_everything_when_interrupted(servers):
    """The last one: nothing runs after it."""
    assert len(servers.family) >= 3
    servers.process.send_signal(signal.SIGINT)
    assert servers.process.wait(timeout=180) == 0
    _, alive = psutil.wait_procs(servers.family, timeout=5)
    assert alive == []
