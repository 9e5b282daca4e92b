"""The servers of `dreamshard up`: Prefect's and MLflow's, a worker, and all deployments."""

import os
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import Event

from dreamshard.formatting import without_passwords
from flows.servers.deploying import deployer
from flows.servers.names import NOTIFY
from flows.servers.processes import (
    EVERYWHERE,
    LOOPBACK,
    Process,
    child_process,
    free_port,
    is_loopback,
    wait_until_healthy,
    with_project,
)
from flows.servers.running import only_one, record
from storage import login
from storage.mlflow_store import server
from storage.schedule import Schedule
from storage.settings import QUIET, RESULTS, Settings

SERVER = (sys.executable, "-m", "flows.servers.prefect_server")
TEAM: Mapping[str, str] = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
}
"""Settings of a server for a team.

It remembers holders of slots across restarts, waiting runs ask every 5 s, and runs that ended 90 days ago are deleted with
their logs and artifacts (Prefect's own times; `watch` alone makes 35,000 runs a year).
"""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Addresses of the servers (Prefect's API is at `/api`, its pages at `/v2`), and the processes behind them by name.

    Attributes:
        mlflow: without a password.
        notes: sentences on what was deployed, for the person who started it.
        login: NAME:PASSWORD that the servers ask for; None if they let everyone in.
    """

    prefect: str
    mlflow: str
    processes: Mapping[str, Process]
    notes: Sequence[str]
    login: str | None


@contextmanager
def local_servers(
    settings: Settings,
    schedule: Schedule,
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    host: str = LOOPBACK,
    worker: bool = True,
    notify: str | None = None,
    given: Collection[str] = (),
    stop: Event | None = None,
) -> Iterator[Addresses]:
    """Run all servers, the worker and the deployments while the block runs.

    Args:
        settings: home, for databases and logs, and tracking URI: the database of the MLflow server, or the address
            (http) of one that runs already. Prefect's database is that of `PREFECT_SERVER_DATABASE_CONNECTION_URL`,
            or a file in the home.
        schedule: what the scheduled flows train for.
        prefect_port: of Prefect's server; on the loopback interface another one if it is taken.
        mlflow_port: likewise.
        host: interface to listen on; on any but the loopback interface, the servers ask for a login, see `login_for`.
        worker: also run flows on this machine.
        notify: who is notified of failures, see `flows.servers.notifications`; only the deployer knows it.
        given: fields of the schedule that somebody typed just now; they win over what was edited in Prefect.
        stop: ends the start once it is set.

    Raises:
        ValueError: the scheduled flows could not run with the schedule; nothing was started.
        OSError: `host` is not an interface of this machine, or a port that others know is taken.
        StoppedError: `stop` was set before everything ran.
        RuntimeError: a server did not start, or a deployment failed; the message ends with its last lines.
    """
    home, tracking_uri = settings.home, settings.tracking_uri
    logs = home / "logs"
    wanted_login = login_for(home, host, os.environ)
    name = socket.getfqdn() if host == EVERYWHERE else host
    prefect = f"http://{name}:{free_port(prefect_port, host)}"
    mlflow = tracking_uri if tracking_uri.startswith("http") else f"http://{name}:{free_port(mlflow_port, host)}"
    environment = _environment(home, prefect, mlflow, wanted_login)
    with only_one(home), ExitStack() as ending:
        processes: dict[str, Process] = {}

        def start(name: str, command: Sequence[str], **more: str) -> None:
            processes[name] = ending.enter_context(child_process(name, command, {**environment, **more}, logs))
            record(home, prefect, without_passwords(mlflow), {name: process.pid for name, process in processes.items()})

        stop = stop or Event()
        environment_of_deployer = {**environment, NOTIFY: notify or ""}
        deploying = ending.enter_context(
            deployer(schedule, environment_of_deployer, logs, measures_here=worker, given=given, stop=stop)
        )
        notes = deploying.checked()
        start("prefect", [*SERVER, "--host", host, "--port", prefect.rpartition(":")[2]])
        if mlflow != tracking_uri:
            port = int(mlflow.rpartition(":")[2])
            more = server.environment(settings) | server.browsers(host, port, os.environ)
            start("mlflow", server.command(settings, port, host), **more)
        starting = {logs / f"{name}.log": process for name, process in processes.items()}
        for page in (f"{prefect}/api/health", f"{prefect}/v2/"):
            wait_until_healthy(page, processes["prefect"], logs / "prefect.log", starting, stop)
        notes += deploying.deployed()
        if worker:
            start("worker", [sys.executable, "-m", "flows.cli.app", "worker"])
        if mlflow != tracking_uri:
            wait_until_healthy(f"{mlflow}/health", processes["mlflow"], logs / "mlflow.log", starting, stop)
        yield Addresses(
            prefect=prefect, mlflow=without_passwords(mlflow), processes=processes, notes=notes, login=wanted_login
        )


def _environment(home: Path, prefect: str, mlflow: str, wanted_login: str | None) -> dict[str, str]:
    """What all processes of `up` get; addresses are those of the servers, without a path."""
    return {
        **TEAM,
        **with_project(os.environ),
        **QUIET,
        **writable_pages(home, os.environ),
        **_logging_in(wanted_login),
        NOTIFY: "",
        "DREAMSHARD_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / RESULTS),
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_UI_URL": f"{prefect}/v2",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "MLFLOW_TRACKING_URI": mlflow,
    }


def login_for(home: Path, host: str, environ: Mapping[str, str]) -> str | None:
    """The login that servers at `host` ask for: of `DREAMSHARD_LOGIN`, else beyond this machine the home's, made if missing.

    Raises:
        ValueError: `DREAMSHARD_LOGIN` is not NAME:PASSWORD.
    """
    given = environ.get(login.LOGIN)
    if given == login.OFF or (not given and is_loopback(host)):
        return None
    return login.checked(given) if given else login.kept(home) or login.make(home)


def _logging_in(login_of_servers: str | None) -> dict[str, str]:
    """The environment of servers that ask for the login and of clients that give it."""
    if login_of_servers is None:
        return {login.LOGIN: ""}
    return {login.LOGIN: login_of_servers, **login.client_environment({login.LOGIN: login_of_servers})}


def writable_pages(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Where Prefect copies its pages before it serves them: beside its code, or in the home if another user installed it."""
    beside_code = metadata.distribution("prefect").locate_file("prefect/server")
    if "PREFECT_SERVER_UI_STATIC_DIRECTORY" in environ or os.access(str(beside_code), os.W_OK):
        return {}
    return {"PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "pages")}
