"""A team's servers on PostgreSQL and workers with homes of their own, each a process, for tests."""

import os
import signal
import subprocess
import sys

import httpx

from tests.flows.servers_up import until
from tests.helpers.ports import free_port

BATCH = 8192  # a smaller one costs the same wherever tables are: kernels are launched, and little else happens


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
    """The servers' addresses, what a process needs to use them, and the workers' homes.

    Attributes:
        folder: of everything on this machine; a worker's home is named after it.
        store: environment variables of the shared store.
        database: `USER:PASSWORD@HOST:PORT` of PostgreSQL.
        databases: environment variables with the addresses of Prefect's and MLflow's databases.
        prefect: address of Prefect's UI.
        mlflow: address of MLflow.
        environment: environment variables of a client.
    """

    def __init__(self, folder, database, s3, ending, workers):
        self.database, self.folder, self.store = database, folder, s3 | {"DREAMSHARD_STORE": "s3://team/shared"}
        environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | self.store
        self.databases = {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{database}/prefect",
            "MLFLOW_TRACKING_URI": f"postgresql://{database}/mlflow",
            "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
        }
        ports = ("--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        said, home = folder / "up.log", str(folder / "servers")
        up = started(ending, folder, said, environment | self.databases, "up", "--no-worker", *ports, "--home", home)

        def addresses():
            assert up.poll() is None, said.read_text()
            lines = [line.split() for line in said.read_text().splitlines()]
            found = {line[0]: line[1] for line in lines if line and line[0] in ("Prefect", "MLflow", "Start")}
            return found if "Start" in found else None

        found = until(addresses, 600)
        self.prefect, self.mlflow = found["Prefect"].removesuffix("/v2/deployments"), found["MLflow"]
        self.environment = environment | {"PREFECT_API_URL": f"{self.prefect}/api", "MLFLOW_TRACKING_URI": self.mlflow}
        for name in workers:
            own = {"DREAMSHARD_HOME": str(folder / name)}
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

    def retrained(self, runs, seconds=600):
        """Start retrainings and wait for all of them; returns their ids by worker and seed, and what became of each by id."""
        (retrain,) = self.api("deployments/filter", deployments={"name": {"any_": ["retrain"]}})
        self.api(f"deployments/{retrain['id']}", "PATCH", concurrency_limit=3)
        ids = {
            (name, seed): self.api(
                f"deployments/{retrain['id']}/create_flow_run",
                parameters={
                    "options": {"recipe": "smoke", "testbed": "simulated:a100", "batch_size": BATCH, "seed": seed}
                },
                work_queue_name=name,
            )["id"]
            for name, seed in runs
        }

        def ended():
            found = self.api("flow_runs/filter", flow_runs={"id": {"any_": list(ids.values())}})
            states = {run["id"]: run for run in found}
            final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            return states if all(run["state_type"] in final for run in states.values()) else None

        states = until(ended, seconds)
        for run in states.values():
            logs = [(self.folder / f"{name}.log").read_text()[-3000:] for name in {name for name, _ in runs}]
            said = "\n".join(
                [str(run["parameters"]), str(run["state"]["message"]), *logs]
            )  # pytest shortens all but text
            assert run["state_type"] == "COMPLETED", said
        return ids, states
