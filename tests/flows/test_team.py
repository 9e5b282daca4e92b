"""A team: both servers on PostgreSQL, two workers with homes of their own, retrainings at once on what they share."""

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from flows.servers.processes import free_port
from tests.flows.postgres import INSTALLED, postgres
from tests.flows.servers_up import until

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not INSTALLED, reason="needs PostgreSQL's server (Debian's package postgresql)"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
BATCH = 8192  # a smaller one costs the same wherever tables are: kernels are launched, and little else happens
RUNS = {"alpha": (0, 1), "beta": (0,)}
"""Seeds by worker, all at once: one training on both, and two on one."""


def started(ending, folder, log, environment, *command):
    """A process of ours in a folder of its own, its output in `log`; it gets Ctrl-C at the end, as from its terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.app", *command],
        cwd=folder,
        env=environment,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )

    def end():
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)

    ending.callback(end)
    return process


class Team:
    """The servers' addresses, what a process needs to use them, and the workers' homes."""

    def __init__(self, folder, database, s3, ending):
        self.folder, self.store = folder, s3 | {"DREAMSHARD_STORE": "s3://team/shared"}
        environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | self.store
        databases = {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{database}/prefect",
            "MLFLOW_TRACKING_URI": f"postgresql://{database}/mlflow",
            "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
        }
        ports = ("--prefect-port", str(free_port(0)), "--mlflow-port", str(free_port(0)))
        said, home = folder / "up.log", str(folder / "servers")
        up = started(ending, folder, said, environment | databases, "up", "--no-worker", *ports, "--home", home)

        def addresses():
            assert up.poll() is None, said.read_text()
            lines = [line.split() for line in said.read_text().splitlines()]
            found = {line[0]: line[1] for line in lines if line and line[0] in ("Prefect", "MLflow", "Start")}
            return found if "Start" in found else None

        found = until(addresses, 600)
        self.prefect, self.mlflow = found["Prefect"].removesuffix("/v2/deployments"), found["MLflow"]
        self.environment = environment | {"PREFECT_API_URL": f"{self.prefect}/api", "MLFLOW_TRACKING_URI": self.mlflow}
        for name in RUNS:
            own = {"DREAMSHARD_HOME": str(folder / name), "DREAMSHARD_HOST": name}
            (folder / name).mkdir()
            started(ending, folder / name, folder / f"{name}.log", self.environment | own, "worker", "--queue", name)

    def api(self, path, method="POST", **body):
        answer = httpx.request(method, f"{self.prefect}/api/{path}", json=body or None, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def limits(self):
        """Global concurrency limits by name: slots that are taken."""
        found = self.api("v2/concurrency_limits/filter", limit=200)
        return {limit["name"]: limit["active_slots"] for limit in found}


@pytest.fixture(scope="module")
def team(tmp_path_factory, s3_environment):
    with ExitStack() as ending:
        database = ending.enter_context(postgres(DEPLOY / "databases.sql"))
        yield Team(tmp_path_factory.mktemp("team"), database, s3_environment, ending)


HOLD = """
from flows.runtime.run_locks import host_lock
with host_lock():
    print("measures", flush=True)
    input()
"""


def test_flows_of_one_host_take_turns_on_the_server_and_a_killed_one_gives_its_turn_back(team):
    from prefect.server.concurrency.lease_storage.filesystem import ConcurrencyLeaseStorage

    environment = team.environment | {"DREAMSHARD_HOST": "gpu-7", "DREAMSHARD_HOME": str(team.folder / "gpu-7")}
    command, pipe = [sys.executable, "-c", HOLD], subprocess.PIPE
    with (
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as first,
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as second,
    ):

        def somebody_measures():
            return team.limits().get("dreamshard-measures-gpu-7")

        assert until(somebody_measures, 120) == 1
        leases = ConcurrencyLeaseStorage(team.folder / "servers" / "prefect" / "concurrency_leases")
        (lease,) = asyncio.run(leases.read_active_lease_ids())
        ready, _, _ = select.select([first.stdout, second.stdout], [], [], 120)
        assert len(ready) == 1, "two measure at once, or nobody"
        holder, waiting = (first, second) if ready == [first.stdout] else (second, first)
        holder.kill()
        assert asyncio.run(leases.renew_lease(lease, timedelta(seconds=0)))  # instead of a minute's wait
        assert waiting.stdout.readline() == "measures\n"
        waiting.communicate("done\n", timeout=120)
    assert somebody_measures() == 0


@pytest.fixture(scope="module")
def finished(team):
    """Flow runs by worker and seed; they ran at once, and all of them completed."""
    (retrain,) = team.api("deployments/filter", deployments={"name": {"any_": ["retrain"]}})
    team.api(f"deployments/{retrain['id']}", "PATCH", concurrency_limit=3)
    runs = {
        (name, seed): team.api(
            f"deployments/{retrain['id']}/create_flow_run",
            parameters={"recipe": "smoke", "testbed": "simulated:a100", "batch_size": BATCH, "seed": seed},
            work_queue_name=name,
        )["id"]
        for name, seeds in RUNS.items()
        for seed in seeds
    }

    def ended():
        found = team.api("flow_runs/filter", flow_runs={"id": {"any_": list(runs.values())}})
        states = {run["id"]: run for run in found}
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return states if all(run["state_type"] in final for run in states.values()) else None

    states = until(ended, 600)
    for run in states.values():
        logs = [(team.folder / f"{name}.log").read_text()[-3000:] for name in RUNS]
        said = "\n".join([str(run["parameters"]), str(run["state"]["message"]), *logs])  # pytest shortens all but text
        assert run["state_type"] == "COMPLETED", said
    spans = [(run["start_time"], run["end_time"]) for run in states.values()]
    assert max(start for start, _ in spans) < min(end for _, end in spans), "they did not run at once"
    return runs


def test_of_retrainings_at_once_each_training_is_one_version_and_one_is_champion(team, finished):
    from mlflow import MlflowClient

    registry = MlflowClient(team.mlflow, team.mlflow)
    versions = registry.search_model_versions("name='dreamshard'")
    assert len(versions) == 2, "seeds 0 and 1; the same training on both workers is one version"
    assert len({version.tags["training"] for version in versions}) == 2
    runs = {registry.get_run(version.run_id).data.params["seed"] for version in versions}
    assert runs == {"0", "1"}
    aliases = registry.get_registered_model("dreamshard").aliases
    said = {str(version.version): version.tags["alias"] for version in versions}
    assert [version for version, alias in said.items() if alias == "champion"] == [str(aliases["champion"])]
    assert "previous" not in aliases, "nobody took the champion's place"
    for version in versions:
        assert registry.get_run(version.run_id).info.artifact_uri.startswith("mlflow-artifacts:"), (
            "not through the server"
        )


def test_every_cost_sample_is_in_the_lake_once_and_nothing_is_left_behind(team, finished, monkeypatch):
    from storage.lake import catalog
    from storage.settings import Settings

    for name, value in team.store.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_environment(os.environ | {"DREAMSHARD_HOME": str(team.folder / "alpha")})
    count = "select count(*) as rows, count(distinct (sample_id, device)) as once from device_costs"
    (found,) = catalog.query(settings, count)
    assert found["rows"] == found["once"] > 0
    evaluated = "select task, placer, count(*) as rows from evaluations group by run_key, task, placer"
    assert {row["rows"] for row in catalog.query(settings, evaluated)} == {1}
    left = [
        str(path)
        for path in settings.store_root.rglob("*")
        if path.name.endswith(".tmp") or "/sample_buffer/" in str(path)
    ]
    assert left == []
    assert list(team.folder.rglob("*.tmp")) == []


def test_no_lock_and_no_slot_is_held_afterwards(team, finished):
    locks = list(team.folder.rglob("locks/*.lock"))
    assert {path.parts[-3] for path in locks} == set(RUNS)
    for path in locks:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    slots = team.limits()
    assert {"dreamshard-measures-alpha", "dreamshard-measures-beta", "dreamshard-registry"} <= set(slots)
    assert set(slots.values()) == {0}
