"""The servers of `dreamshard up`: Prefect's and MLflow's, a worker, and all deployments."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dreamshard.files.text import without_passwords
from flows.servers.names import NOTIFY
from flows.servers.processes import LOOPBACK, Process, check_free, child_process, wait_until_healthy
from flows.servers.running import only_one
from storage.schedule import Schedule
from storage.settings import RESULTS, Settings

SERVER: Mapping[str, str] = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_UI_V2_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Settings of Prefect's server.

It remembers holders of slots across restarts, waiting runs ask every 5 s, and runs that ended 90 days ago are deleted with
their logs and artifacts (Prefect's own times; `watch` alone makes 35,000 runs a year). Its newer pages, without
advertisements.
"""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses of the servers (Prefect's API is at `/api`, its pages at `/v2`), and the processes behind them by name.

    Attributes:
        mlflow: without a password.
        notes: sentences on the deployments, for the person who started it.
    """

    prefect: str
    mlflow: str
    processes: Mapping[str, Process]
    notes: Sequence[str]


@contextmanager
def local_servers(
    settings: Settings,
    schedule: Schedule,
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    worker: bool = True,
    notify: str | None = None,
    given: Collection[str] = (),
) -> Iterator[Addresses]:
    """Run all servers, the worker and the deployments on this machine's loopback interface while the block runs.

    Prefect must not have been imported: this process deploys, with an environment that names the servers.

    Args:
        settings: home, for databases and logs, and tracking URI: the database of the MLflow server, or the address
            (http) of one that runs already. Prefect's database is that of `PREFECT_SERVER_DATABASE_CONNECTION_URL`,
            or a file in the home.
        schedule: what the scheduled flows train for.
        worker: also run flows on this machine.
        notify: who is notified of failures, see `flows.servers.notifications`; no child process knows it.
        given: fields of the schedule that somebody typed just now; they win over what was edited in Prefect.

    Raises:
        ValueError: a port is taken, another `up` runs, or the scheduled flows could not run with the schedule.
        RuntimeError: a server did not start; the message has its last lines.
    """
    logs, tracking_uri = settings.home / "logs", settings.tracking_uri
    prefect = f"http://{LOOPBACK}:{prefect_port}"
    is_away = tracking_uri.startswith("http")
    mlflow = tracking_uri if is_away else f"http://{LOOPBACK}:{mlflow_port}"
    with only_one(settings.home, prefect, without_passwords(mlflow)), ExitStack() as ending:
        for port in (prefect_port, *(() if is_away else (mlflow_port,))):
            check_free(port)
        os.environ.update({**SERVER, **os.environ, **_environment(settings.home, prefect, mlflow)})
        processes: dict[str, Process] = {}

        def start(name: str, *command: str, **more: str) -> None:
            full = [sys.executable, "-m", *command]
            processes[name] = ending.enter_context(child_process(name, full, {**os.environ, **more}, logs))

        start("prefect", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(prefect_port))
        if not is_away:
            start("mlflow", *mlflow_command(settings, mlflow_port), MLFLOW_BACKEND_STORE_URI=tracking_uri)
        from flows.servers import deployment  # imports Prefect, which then reads the environment

        environ = {**os.environ, NOTIFY: notify or ""}
        notes = deployment.check(schedule, measures_here=worker, environ=environ)
        for page in (f"{prefect}/api/health", f"{prefect}/v2/"):
            wait_until_healthy(page, processes["prefect"], logs / "prefect.log")
        if not is_away:
            wait_until_healthy(f"{mlflow}/health", processes["mlflow"], logs / "mlflow.log")
        notes += deployment.deploy(schedule, environ, given=given, measures_here=worker)
        if worker:
            start("worker", "flows.cli.app", "worker")
        yield Addresses(prefect=prefect, mlflow=without_passwords(mlflow), processes=processes, notes=notes)


def mlflow_command(settings: Settings, port: int) -> list[str]:
    """MLflow's server; its database comes by environment, since every user of the machine reads a command's password.

    With the home's own database, experiments keep their files in the home, so that `dreamshard run` reads them without a
    server. Any other database belongs to a team, and all files go through the server.
    """
    own = settings.tracking_uri.startswith("sqlite")
    return [
        *("mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning", "--artifacts-destination", settings.artifact_root),
        *(("--default-artifact-root", settings.artifact_root) if own else ()),
    ]


def _environment(home: Path, prefect: str, mlflow: str) -> dict[str, str]:
    """The environment of all processes of `up`."""
    return {
        NOTIFY: "",
        "DREAMSHARD_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / RESULTS),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "pages"),
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_UI_URL": f"{prefect}/v2",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "MLFLOW_TRACKING_URI": mlflow,
    }
