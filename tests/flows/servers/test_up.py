"""Real servers, real deployments, a real worker, from an installed wheel: the one module that pays for them."""

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
from dreamshard.torchrec import load_plan
from flows.forms.options import PromotionForm
from tests.flows.servers_up import api, deployment, servers_up, until
from tests.helpers.planned_trainer import Listed, train
from tests.helpers.ports import free_port
from tests.helpers.receivers import Webhook, receiving
from tests.helpers.sharded_dlrm import failures_of
from tests.helpers.wheel import install, make_wheel

pytestmark = pytest.mark.timeout(900)

FLOWS = ["retrain", "watch", "ingest", "profile", "train", "evaluate", "register", "promote", "place", "learn"]
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    home, installed = tmp_path_factory.mktemp("servers"), str(install(make_wheel(tmp_path_factory.mktemp("wheel"))))
    python = {"args": [sys.executable, "-c", "import flows; print(flows.__file__)"], "cwd": home, "text": True}
    assert subprocess.check_output(**python, env={**os.environ, "PYTHONPATH": installed}).startswith(installed)
    with servers_up(home, PYTHONPATH=installed) as running:
        yield running


def test_everything_is_deployed_with_the_fields_of_its_form(servers):
    deployments = {flow: deployment(servers, flow) for flow in (*FLOWS, "compare", "prune")}
    assert {deployments[flow]["name"] for flow in FLOWS} == {"meta-dlrm-2021"}
    assert not any(value["pull_steps"] for value in deployments.values()), "workers have no folder of who deploys"
    fields = deployments["retrain"]["parameter_openapi_schema"]["properties"]
    assert fields["recipe"]["enum"] == sorted(RECIPES)
    assert fields["seed"]["allOf"][0]["minimum"] == 0
    assert "default" not in fields["iterations"], "the page would fill it in, and the server refuse null"
    assert deployments["promote"]["parameter_openapi_schema"]["properties"].keys() == {*PromotionForm.model_fields}
    assert deployments["profile"]["global_concurrency_limit"]["limit"] == 1
    (automation,) = api(servers, "automations/filter")
    assert automation["name"] == "dreamshard: a run's process is gone"


def list_of_tables(servers, model: str, rows: int = 1000) -> str:
    """The list of a model's twelve tables, the first of them with so many rows."""
    path = servers.home / f"{model}.csv"
    lines = [f"t{i},{rows if i == 0 else 1000 + i},{8 + 8 * (i % 3)},{1 + i % 5}\n" for i in range(12)]
    path.write_text("name,rows,dim,pooling_factor\n" + "".join(lines))
    return str(path)


def started(servers, name: str, **parameters) -> str:
    """The id of a run of a deployment, started over the API."""
    path = f"deployments/{deployment(servers, name)['id']}/create_flow_run"
    return api(servers, path, parameters=parameters)["id"]


def state_of(servers, run: str) -> dict:
    return httpx.get(f"{servers.prefect}/api/flow_runs/{run}", timeout=120).json()["state"]


def completed(servers, name: str, **parameters) -> dict:
    """The result of a run, read as another program would: over the API, from the home's storage.

    A watch is cancelled while another one runs, as the schedule starts one every quarter of an hour: then again.
    """
    run = started(servers, name, **parameters)
    until(lambda: state_of(servers, run)["type"] in ENDED, 600)
    if "concurrency limit reached" in (state_of(servers, run)["message"] or ""):
        return completed(servers, name, **parameters)
    return ended(servers, run)


def ended(servers, run: str) -> dict:
    """The result of a run that completes."""
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


def current_plan_of(servers, model: str) -> dict:
    return json.loads((servers.home / "plans" / model / "current.json").read_text())


def runs_called(servers, name: str) -> list[dict]:
    return api(servers, "flow_runs/filter", flow_runs={"name": {"any_": [name]}})


def test_each_model_is_trained_and_planned_by_its_own_setting(servers, tmp_path):
    for model in ("ads", "feed"):
        tables = list_of_tables(servers, model)
        said = deployed(servers, tmp_path, "--recipe", "smoke", "--testbed", "simulated", "--source", tables)
        assert f"model    {model}: one model, planned as a whole; source {tables}, recipe smoke" in said
        assert deployment(servers, f"place/{model}")["parameters"]["tables"] == tables
    command = [sys.executable, "-m", "prefect", "deployment", "run", "retrain/ads", "-p", "devices=4", "--watch"]
    done = subprocess.run(command, env=environment_of(servers), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = completed(servers, "retrain/feed")
    assert outcome["version"] == "models:/dreamshard.feed.simulated-rtx2080ti-x2/1"
    assert "of another model on the same hardware" not in outcome["effort"], "the other model has four devices"
    for model, devices in {"ads": 4, "feed": 2}.items():
        plan = current_plan_of(servers, model)
        assert (plan["number"], plan["num_devices"], plan["model"]) == (1, devices, model)
    artifacts = {artifact["key"]: artifact for artifact in api(servers, "artifacts/filter")}
    assert artifacts["dreamshard-progress"]["data"] == 100.0
    assert {"report-ads", "report-feed", "plan-ads", "plan-feed"} <= artifacts.keys()
    assert servers.mlflow in artifacts["report-feed"]["data"]


def test_changed_tables_get_a_plan_once_a_person_approves_it(servers):
    """After the runs above, which trained on the lists as they were."""
    before = {model: current_plan_of(servers, model) for model in ("ads", "feed")}
    source, address = list_of_tables(servers, "ads", rows=2000), f"file://{servers.home}/plans/ads/current.json"
    with pytest.raises(ValueError, match="t0"):
        load_plan(address, Listed(source))
    watched = completed(servers, "watch/ads", devices=4)
    assert (watched["resized"], watched["started"]) == (1, "ads ~1"), watched
    (run,) = runs_called(servers, "ads ~1")
    assert run["parent_task_run_id"], "its page and the watch's name each other"
    plan = ended(servers, run["id"])["plan"]
    assert (plan["number"], plan["is_current"], current_plan_of(servers, "ads")) == (2, False, before["ads"])
    (asking,) = runs_called(servers, "plan 2 of ads")
    until(lambda: state_of(servers, asking["id"])["type"] == "PAUSED", 300)
    api(servers, f"flow_runs/{asking['id']}/resume", run_input={"approve": True, "reason": "new tables"})
    ended(servers, asking["id"])
    plan = current_plan_of(servers, "ads")
    assert (plan["number"], plan["replaces"], "new tables" in plan["current_because"]) == (2, 1, True)
    failed = failures_of(train, 4, 4, free_port(), address, source)
    assert not failed, "\n".join(failed)
    assert current_plan_of(servers, "feed") == before["feed"]

    def both_are_told() -> bool:
        events = api(servers, "events/filter", filter={"event": {"name": ["dreamshard.plan.current"]}})["events"]
        return {event["payload"]["plan"] for event in events if event["payload"]["model"] == "ads"} == {1, 2}

    until(both_are_told, 120)  # the server stores events in batches
    back = completed(servers, "promote/ads", plan="previous")
    assert (back["plan"], current_plan_of(servers, "ads")["number"]) == (1, 1)
    assert current_plan_of(servers, "ads")["tables"] == before["ads"]["tables"]
    assert any("plan 1 of ads is current" in str(artifact["data"]) for artifact in api(servers, "artifacts/filter"))


def test_a_cancelled_retraining_is_not_started_again(servers):
    list_of_tables(servers, "feed", rows=2000)
    watched = completed(servers, "watch/feed")
    (run,) = runs_called(servers, watched["started"])
    until(lambda: state_of(servers, run["id"])["type"] == "RUNNING", 300)
    api(servers, f"flow_runs/{run['id']}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    until(lambda: state_of(servers, run["id"])["type"] == "CANCELLED", 180)
    assert {recorded.info.status for recorded in mlflow_runs(servers, run["id"])} <= {"KILLED"}
    assert completed(servers, "watch/feed")["retraining"] == f"Retraining {watched['started']} is cancelled."
    assert len(runs_called(servers, watched["started"])) == 1, "it would fail every quarter of an hour"


def processes(servers, word: str) -> list[psutil.Process]:
    """Processes of `up` whose command has a word."""
    running = psutil.Process(servers.process.pid).children(recursive=True)
    return [one for one in running if one.status() != psutil.STATUS_ZOMBIE and word in one.cmdline()]


def test_what_is_killed_is_marked_and_the_worker_replaced(servers):
    """As the kernel does when memory is short."""
    run = started(servers, "retrain/feed", seed=9)
    until(lambda: mlflow_runs(servers, run), 300)
    (engine,), (worker,) = processes(servers, "prefect.engine"), processes(servers, "worker")
    engine.kill()
    until(lambda: state_of(servers, run)["type"] == "CRASHED", 120)
    until(lambda: {recorded.info.status for recorded in mlflow_runs(servers, run)} == {"KILLED"}, 120)
    worker.kill()
    until(lambda: [new for new in processes(servers, "worker") if new.pid != worker.pid], 60)
    assert completed(servers, "promote/ads", plan="1")["plan"] == 1


def deployed(servers, home: Path, *options: str) -> str:
    command = [sys.executable, "-m", "flows.cli.app", "deploy", *options]
    environment = {**environment_of(servers), "DREAMSHARD_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def edit(address: str, fields: dict) -> None:
    """Change something of Prefect's, as its own client does: again while its database is busy."""
    while (answer := httpx.patch(address, json=fields, timeout=120)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
    answer.raise_for_status()


def test_a_pause_survives_deploying_and_a_failure_notifies(servers, tmp_path):
    retrain = deployment(servers, "retrain/ads")
    (nightly,) = retrain["schedules"]
    here = f"{servers.prefect}/api/deployments/{retrain['id']}"
    edit(here, {"work_pool_name": "dreamshard", "work_queue_name": "h200"})
    edit(f"{here}/schedules/{nightly['id']}", {"active": False})
    code = (
        "import sys\n"
        "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook\n"
        "Webhook(name='team', url=sys.argv[1], json_data={'subject': '{{subject}}', 'body': '{{body}}'}).save('team')\n"
    )
    with receiving(HTTPServer(("127.0.0.1", 0), Webhook)) as (port, messages):
        hook = f"http://127.0.0.1:{port}/hook"
        subprocess.run([sys.executable, "-c", code, hook], env=environment_of(servers), check=True)
        deployed(servers, tmp_path, "--model", "ads", "--memory-gb", "2", "--notify", "custom-webhook/team")
        paused = deployment(servers, "retrain/ads")
        (schedule,) = paused["schedules"]
        assert (schedule["active"], schedule["parameters"]) == (False, {"full": True})
        assert paused["work_queue_name"] == "h200"
        setting = paused["parameters"]
        assert (setting["recipe"], setting["memory_gb"]) == ("smoke", 2.0), "fields that are not given stay"
        run = started(servers, "retrain/ads", source="/absent/tables.csv")
        until(lambda: messages, 300)
    message = json.loads(messages[0])
    assert message["subject"].startswith("dreamshard: retrain failed")
    assert "/absent/tables.csv" in message["body"]
    assert message["body"].endswith(f"/flow-run/{run}")
    assert {recorded.info.status for recorded in mlflow_runs(servers, run)} == {"FAILED"}


def test_up_ends_everything_when_interrupted(servers):
    """The last one: nothing runs after it."""
    launcher = psutil.Process(servers.process.pid)
    assert launcher.memory_info().rss < 80e6, "it only waits"
    assert len(family := launcher.children(recursive=True)) >= 3
    servers.process.send_signal(signal.SIGINT)
    assert servers.process.wait(timeout=180) == 0
    assert psutil.wait_procs(family, timeout=5)[1] == []
