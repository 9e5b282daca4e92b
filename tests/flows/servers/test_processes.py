"""Real servers, real deployments, a real worker: the one module that pays for them."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psutil
import pytest

from dreamshard.recipes import RECIPES
from tests.flows.servers_up import ENVIRONMENT, api, deployment, servers_up, until

pytestmark = pytest.mark.timeout(900)

STAGES = {"ingest", "profile", "train", "train-cost", "train-policy", "evaluate", "promote", "compare", "place"}
EXPECTED = {"retrain", "watch", "prune", *STAGES}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with servers_up(tmp_path_factory.mktemp("servers")) as running:
        yield running


def test_everything_is_deployed_with_form_fields_and_profiling_runs_one_at_a_time(servers):
    found = {each["name"]: each for each in api(servers, "deployments/filter")}
    assert set(found) == EXPECTED
    assert {name: each["pull_steps"] for name, each in found.items()} == {name: [] for name in EXPECTED}, (
        "the folder of whoever deploys is none of a worker's"
    )
    assert all("source" not in found[name]["parameters"] for name in ("retrain", "watch")), "the recipe's own"
    fields = found["retrain"]["parameter_openapi_schema"]["properties"]
    assert fields["recipe"]["enum"] == sorted(RECIPES)
    assert fields["seed"]["allOf"][0]["minimum"] == 0
    assert all(field["description"] and field["title"] for field in fields.values())
    assert found["profile"]["global_concurrency_limit"]["limit"] == 1
    assert all(each["job_variables"] == ENVIRONMENT for each in found.values())
    assert found["profile"]["concurrency_options"]["collision_strategy"] == "ENQUEUE"


def test_the_nightly_schedule_creates_runs(servers):
    wanted = deployment(servers, "retrain")["id"]

    def scheduled():
        return api(
            servers,
            "flow_runs/filter",
            flow_runs={"deployment_id": {"any_": [wanted]}, "state": {"type": {"any_": ["SCHEDULED"]}}},
        )

    runs = until(scheduled, 180)
    assert all(run["auto_scheduled"] for run in runs)
    assert all("T03:00:00" in run["expected_start_time"] for run in runs)


def test_doctor_sees_the_servers_on_whatever_port_and_a_second_up_names_them(servers):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}

    def said(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "flows.cli.app", *arguments, "--home", str(servers.home)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    checks = {check["what"]: check for check in json.loads(said("doctor", "--json").stdout)}
    for name, address in (("Prefect", servers.prefect), ("MLflow", servers.mlflow)):
        assert checks[f"{name} server"]["state"] == "ok"
        assert checks[f"{name} server"]["found"] == f"{address}, of `up` (process {servers.process.pid})"
    second = said("up")
    assert second.returncode == 1
    assert (
        f"use Prefect at {servers.prefect} and MLflow at {servers.mlflow}, or end it: kill {servers.process.pid}"
        in second.stderr
    )


def test_a_value_outside_the_forms_choices_is_refused_by_the_api(servers):
    answer = httpx.post(
        f"{servers.prefect}/api/deployments/{deployment(servers, 'retrain')['id']}/create_flow_run",
        json={"parameters": {"recipe": "none such"}, "enforce_parameter_schema": True},
        timeout=120,
    )
    assert answer.status_code in (409, 422)
    assert "none such" in answer.text


def list_of_tables(servers, rows: int = 1000) -> str:
    """A list of 40 tables, the first of them with so many rows."""
    path = servers.home / "tables.csv"
    lines = [f"t{i},{rows if i == 0 else 1000 + i},{8 + 8 * (i % 3)},{1 + i % 5}\n" for i in range(40)]
    path.write_text("name,rows,dim,pooling_factor\n" + "".join(lines))
    return str(path)


def completed(servers, name: str, **parameters) -> dict:
    """The result of a run of a deployment, started over the API."""
    path = f"deployments/{deployment(servers, name)['id']}/create_flow_run"
    run = api(servers, path, parameters=parameters)["id"]

    def finished():
        state = httpx.get(f"{servers.prefect}/api/flow_runs/{run}", timeout=120).json()["state"]
        return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    state = until(finished, 600)
    assert state["type"] == "COMPLETED", (state["message"], (servers.home / "logs" / "worker.log").read_text()[-3000:])
    return result_of(servers, run)


def test_a_smoke_run_started_over_the_api_ends_with_a_champion_and_its_artifacts(servers):
    tables = list_of_tables(servers)
    outcome = completed(servers, "retrain", recipe="smoke", testbed="simulated", source=tables, iterations=1)
    assert outcome["version"] == "1"
    assert outcome["testbed"].startswith("simulated")
    artifacts = {each["key"]: each for each in api(servers, "artifacts/filter")}
    assert {"dreamshard-progress", "dreamshard-evaluation", "dreamshard-report"} <= set(artifacts)
    assert artifacts["dreamshard-progress"]["data"] == 100.0
    assert "size_greedy" in artifacts["dreamshard-evaluation"]["data"]
    assert servers.mlflow in artifacts["dreamshard-report"]["data"]
    assert f"{servers.mlflow}/#/models/dreamshard/versions/1" in artifacts["dreamshard-mlflow-version"]["data"]
    assert {"dreamshard-mlflow-run", "dreamshard-mlflow-report"} <= set(artifacts)
    mlflow = f"{servers.mlflow}/api/2.0/mlflow"
    named = {"name": "dreamshard", "version": outcome["version"]}
    version = httpx.get(f"{mlflow}/model-versions/get", params=named, timeout=120).json()["model_version"]
    assert {tag["key"] for tag in version["tags"]} >= {"reason", "dataset", "hardware", "testbed", "commit", "seed"}
    run = httpx.get(f"{mlflow}/runs/get", params={"run_id": version["run_id"]}, timeout=120).json()["run"]
    assert {"eval_overall_ms", "eval_predicted_mape"} <= {
        metric["key"].partition("/")[2] for metric in run["data"]["metrics"]
    }


def test_a_run_that_fails_is_one_sentence_in_its_state_its_log_and_mlflow(servers):
    path = f"deployments/{deployment(servers, 'retrain')['id']}/create_flow_run"
    missing = str(servers.home / "none.csv")
    run = api(servers, path, parameters={"recipe": "smoke", "testbed": "simulated", "source": missing})["id"]

    def failed():
        state = httpx.get(f"{servers.prefect}/api/flow_runs/{run}", timeout=120).json()["state"]
        return state if state["type"] == "FAILED" else None

    sentence = until(failed, 300)["message"]
    assert sentence.startswith(f"there is no file {missing}, so ")

    def lines():
        found = logs_of(servers, run)
        return found if any("Finished in state Failed" in line["message"] for line in found) else None

    errors = [line["message"] for line in until(lines, 60) if line["level"] >= logging.ERROR]
    assert errors == [sentence]
    runs = mlflow_runs(servers, run)
    assert {(each["info"]["run_name"], each["info"]["status"]) for each in runs} == {("retrain none.csv", "FAILED")}
    tags = {tag["key"]: tag["value"] for tag in runs[0]["data"]["tags"]}
    assert tags["error"] == tags["mlflow.note.content"] == sentence
    assert tags["prefect_run"].endswith(f"/flow-run/{run}")


def logs_of(servers, flow_run: str) -> list[dict]:
    """What a run and its Prefect tasks logged, oldest first."""
    return api(servers, "logs/filter", logs={"flow_run_id": {"any_": [flow_run]}}, limit=200, sort="TIMESTAMP_ASC")


def mlflow_runs(servers, flow_run: str) -> list[dict]:
    """The parent runs in MLflow of a flow run, from its API."""
    base = f"{servers.mlflow}/api/2.0/mlflow"
    experiment = httpx.get(f"{base}/experiments/get-by-name", params={"experiment_name": "dreamshard"}, timeout=120)
    asked = {
        "experiment_ids": [experiment.json()["experiment"]["experiment_id"]],
        "filter": f"tags.`prefect.flow_run_id` = '{flow_run}'",
    }
    return httpx.post(f"{base}/runs/search", json=asked, timeout=120).json().get("runs", [])


def test_a_changed_list_of_tables_starts_one_retraining_with_the_parameters_of_the_watch(servers):
    """After the smoke run, which trained on the list as it was."""
    watched = {"recipe": "smoke", "testbed": "simulated", "source": list_of_tables(servers, rows=2000), "seed": 0}
    found = completed(servers, "watch", **watched)
    assert (found["resized"], found["added"], found["removed"], found["emitted"]) == (1, 0, 0, True), found
    asked = {**watched, "num_devices": None, "memory_gb": None, "tables_per_task": None}

    def retrainings():
        wanted = {"deployment_id": {"any_": [deployment(servers, "retrain")["id"]]}}
        runs = api(servers, "flow_runs/filter", flow_runs=wanted)
        return [run for run in runs if run["parameters"].items() >= asked.items()]

    (run,) = until(retrainings, 180)
    assert not run["parameters"].get("full"), "it trains on from the champion"
    path = f"flow_runs/{run['id']}"

    def has_become(wanted):
        state = httpx.get(f"{servers.prefect}/api/{path}", timeout=120).json()["state"]["type"]
        assert state != "COMPLETED", "too late: it ended well"
        return state == wanted

    until(
        lambda: has_become("RUNNING"), 300
    )  # Prefect looks for the flow of one that is still starting, and finds none
    api(servers, f"{path}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    until(lambda: has_become("CANCELLED"), 180)
    assert {each["info"]["status"] for each in mlflow_runs(servers, run["id"])} <= {"KILLED"}
    told = [line["message"] for line in logs_of(servers, run["id"])]
    assert not [message for message in told if "Traceback" in message], "\n".join(told)
    assert "is not a package" not in (servers.home / "logs" / "worker.log").read_text()
    again = completed(servers, "watch", **watched)
    assert not again["emitted"], "it would fail every quarter of an hour"
    assert "was requested at" in again["retraining"]
    assert len(retrainings()) == 1
    shown = {each["key"]: each for each in api(servers, "artifacts/filter")}["dreamshard-tables"]
    assert "1 resized" in shown["description"]


def edit(address: str, fields: dict) -> None:
    """Change something of Prefect's, as its own client does: again while its database is busy."""
    while (answer := httpx.patch(address, json=fields, timeout=120)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
    answer.raise_for_status()


def test_what_was_edited_in_prefect_stays_and_a_failed_retraining_is_told_to_someone(servers, tmp_path):
    retrain = deployment(servers, "retrain")
    (nightly,) = retrain["schedules"]
    address = f"{servers.prefect}/api/deployments/{retrain['id']}"
    edited = {**retrain["parameters"], "num_devices": 8}
    edit(address, {"parameters": edited})
    edit(f"{address}/schedules/{nightly['id']}", {"active": False})

    with received_over_http() as (hook, messages):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli.app", "deploy", "--memory-gb", "2", "--notify", hook],
            env={
                **os.environ,
                "PREFECT_API_URL": f"{servers.prefect}/api",
                "MLFLOW_TRACKING_URI": servers.mlflow,
                "DREAMSHARD_HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "num_devices 8 (deployed: empty)" in done.stderr
        assert "schedule nightly paused" in done.stderr
        assert "reported to http://127.0.0.1:" in done.stderr
        found = deployment(servers, "retrain")
        assert found["parameters"].items() >= {"num_devices": 8, "memory_gb": 2.0}.items()
        assert [(each["active"], each["parameters"]) for each in found["schedules"]] == [(False, {"full": True})]
        assert deployment(servers, "watch")["parameters"]["memory_gb"] == 2.0

        run = api(servers, f"deployments/{retrain['id']}/create_flow_run", parameters={"source": "/absent/tables.csv"})
        until(lambda: messages, 300)
    (message,) = messages
    assert message["subject"] == f"dreamshard: retrain failed ({run['name']})"
    sentence, _, _, link = message["body"].splitlines()
    assert sentence.startswith("there is no file /absent/tables.csv, so there are no tables to ingest")
    assert link.endswith(f"/flow-run/{run['id']}")


@contextmanager
def received_over_http():
    """A webhook's address, and the messages that it gets while the block runs."""
    messages = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", messages
        server.shutdown()


def result_of(servers, flow_run: str) -> dict:
    """The result of a flow run, read as another program would: over the API, from the home's storage."""
    code = (
        "import sys, json\n"
        "from prefect.client.orchestration import get_client\n"
        "with get_client(sync_client=True) as client:\n"
        "    state = client.read_flow_run(sys.argv[1]).state\n"
        "    print(json.dumps(state.result()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, flow_run],
        env={
            **os.environ,
            "PREFECT_API_URL": f"{servers.prefect}/api",
            "PREFECT_LOCAL_STORAGE_PATH": str(servers.home / "results"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_up_ends_everything_when_interrupted(servers):
    """The last one: nothing runs after it."""
    assert len(servers.family) >= 3
    servers.process.send_signal(signal.SIGINT)
    assert servers.process.wait(timeout=180) == 0
    _, alive = psutil.wait_procs(servers.family, timeout=5)
    assert alive == []
