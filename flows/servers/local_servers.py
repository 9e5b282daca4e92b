"""The servers of `dreamshard up`: Prefect's and MLflow's, a worker, and all deployments."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.servers.processes import (
    EVERYWHERE,
    LOOPBACK,
    PROJECT,
    Process,
    child_process,
    free_port,
    last_lines,
    wait_until_healthy,
)
from flows.servers.work_pool import POOL, deployment_settings
from storage.mlflow_store import server
from storage.settings import QUIET, Settings

PREFECT = (sys.executable, "-m", "prefect")
TEAM: Mapping[str, str] = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
}
"""Settings of a server for a team: after a restart it still knows who holds a slot, and those who wait ask every 5 s."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers answer, and the processes behind them.

    Attributes:
        prefect: its UI; the API is at `/api`.
        mlflow: its UI and API.
        environment: what a process needs to use them.
        processes: by name; when one ends, the others are ended too.
    """

    prefect: str
    mlflow: str
    environment: Mapping[str, str]
    processes: Mapping[str, Process]


@contextmanager
def local_servers(
    settings: Settings,
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    host: str = LOOPBACK,
    worker: bool = True,
) -> Iterator[Addresses]:
    """Run all servers, the worker and the deployments while the block runs.

    Args:
        settings: where databases and logs are. If its tracking URI is a server's address (http), no MLflow server is
            started; otherwise it names the database of the server. Prefect's database is that of its own
            `PREFECT_SERVER_DATABASE_CONNECTION_URL`, or a file of the home.
        prefect_port: tried first.
        mlflow_port: tried first.
        host: interface to listen on; any other than the loopback interface lets others use the servers, without a
            password.
        worker: whether flows run on this machine too.

    Raises:
        OSError: `host` is none of this machine's interfaces.
        RuntimeError: a server did not start, or a deployment failed; the message ends with its last lines.
    """
    home, tracking_uri = settings.home, settings.tracking_uri
    logs = home / "logs"
    name = socket.getfqdn() if host == EVERYWHERE else host
    prefect = f"http://{name}:{free_port(prefect_port, host)}"
    mlflow = tracking_uri if tracking_uri.startswith("http") else f"http://{name}:{free_port(mlflow_port, host)}"
    environment = _environment(home, prefect, mlflow)
    with ExitStack() as ending:
        processes: dict[str, Process] = {}

        def start(name: str, command: Sequence[str], **more: str) -> None:
            processes[name] = ending.enter_context(child_process(name, command, {**environment, **more}, logs))

        start("prefect", [*PREFECT, "server", "start", "--host", host, "--port", prefect.rpartition(":")[2]])
        if mlflow != tracking_uri:
            port = int(mlflow.rpartition(":")[2])
            browsers = server.browsers(host, port, os.environ)
            command = server.command(settings, port, host)
            start("mlflow", command, **server.environment(settings), **browsers)
            wait_until_healthy(f"{mlflow}/health", processes["mlflow"], logs / "mlflow.log")
        wait_until_healthy(f"{prefect}/api/health", processes["prefect"], logs / "prefect.log")
        _run([*PREFECT, "work-pool", "create", POOL, "--type", "process", "--overwrite"], environment, logs)
        _run([*PREFECT, "--no-prompt", "deploy", "--all"], environment, logs)
        if worker:
            start("worker", [sys.executable, "-m", "flows.cli.app", "worker"])
        yield Addresses(prefect=prefect, mlflow=mlflow, environment=environment, processes=processes)


def _environment(home: Path, prefect: str, mlflow: str) -> dict[str, str]:
    return {
        **TEAM,
        **os.environ,
        **QUIET,
        **deployment_settings(os.environ),
        "DREAMSHARD_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "MLFLOW_TRACKING_URI": mlflow,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def _run(command: Sequence[str], environment: Mapping[str, str], logs: Path) -> None:
    log = logs / "deploy.log"
    with log.open("ab") as file:
        done = subprocess.run(
            command,
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed, so no flow can be started: {last_lines(log)}; see {log}")
