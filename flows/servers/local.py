"""The processes of `dreamshard up`: Prefect's server, MLflow's server and a worker, on this machine's loopback interface."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from storage.settings import Settings, quiet_environment

LOOPBACK = "127.0.0.1"
STARTUP_S = 600.0
"""The first start creates two databases, which takes minutes on a busy machine."""
_PATIENCE_S = 30.0

_SERVER = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_UI_V2_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Prefect's server remembers holders of slots across restarts and deletes runs that ended 90 days ago; its newer pages."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Addresses of the servers (Prefect's API is at `/api`, its pages at `/v2`), and all processes by name."""

    settings: Settings
    prefect: str
    mlflow: str
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def first_ended(self) -> str | None:
        """The name of a process that ended, or None."""
        return next((name for name, process in self.processes.items() if process.poll() is not None), None)

    @contextmanager
    def child(self, name: str, *command: str, **more: str) -> Iterator[None]:
        """Run `python -m COMMAND` while the block runs; its output goes to `<home>/logs/NAME.log`.

        Args:
            more: environment variables besides this process's own.
        """
        logs = self.settings.home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others in order
            )
        self.processes[name] = process
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def wait_for(self, url: str) -> None:
        """Wait until a server answers.

        Raises:
            RuntimeError: a process ended, or none answers in time; the message has its last lines.
        """
        deadline = time.monotonic() + STARTUP_S
        while not answers(url):
            ended = self.first_ended()
            if ended is not None or time.monotonic() > deadline:
                log = self.settings.home / "logs" / f"{ended or 'prefect'}.log"
                last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
                raise RuntimeError(f"no server answers at {url}: {last}; see {log}")
            time.sleep(0.2)


@contextmanager
def local_servers(settings: Settings, prefect_port: int, mlflow_port: int) -> Iterator[Servers]:
    """Run Prefect's and MLflow's servers while the block runs; this process's environment then names them.

    With the home's own database, MLflow's experiments keep their files in the home, so that `dreamshard run` reads them
    without a server. Any other database belongs to a team, and all files go through the server.

    Args:
        settings: the home, for Prefect's database and logs; `tracking_uri` is MLflow's database. Prefect's is that of
            `PREFECT_SERVER_DATABASE_CONNECTION_URL`, or a file in the home.

    Raises:
        ValueError: a port is taken.
        RuntimeError: a server did not start; the message has its last lines.
    """
    for port in (prefect_port, mlflow_port):
        _check_free(port)
    prefect, mlflow = f"http://{LOOPBACK}:{prefect_port}", f"http://{LOOPBACK}:{mlflow_port}"
    variables = {
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(settings.home / "prefect" / "pages"),
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_UI_URL": f"{prefect}/v2",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "MLFLOW_TRACKING_URI": mlflow,
    }
    quiet_environment()
    os.environ.update({**_SERVER, **os.environ, **variables})
    own_files = (
        ("--default-artifact-root", settings.artifact_root) if settings.tracking_uri.startswith("sqlite") else ()
    )
    files = ("--artifacts-destination", settings.artifact_root, *own_files)
    listen, quiet = ("--host", LOOPBACK, "--port"), ("--uvicorn-opts", "--log-level warning")
    # the database comes by environment: every user of the machine reads a command's password
    database = {"MLFLOW_BACKEND_STORE_URI": settings.tracking_uri}
    servers = Servers(settings=settings, prefect=prefect, mlflow=mlflow)
    with (
        servers.child("prefect", "prefect", "server", "start", *listen, str(prefect_port)),
        servers.child(
            "mlflow", "mlflow", "server", *listen, str(mlflow_port), "--workers", "1", *quiet, *files, **database
        ),
    ):
        for page in (f"{prefect}/api/health", f"{prefect}/v2/", f"{mlflow}/health"):
            servers.wait_for(page)
        yield servers


def _check_free(port: int) -> None:
    """Check that a server can listen on a port of this machine.

    Raises:
        ValueError: something listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ValueError(
                f"port {port} of {LOOPBACK} is taken, perhaps by another `dreamshard up`; end it, or give another port"
            ) from error


def answers(url: str) -> bool:
    """Whether a server has a page at `url`, perhaps behind a login."""
    try:
        return httpx.get(url, timeout=5.0).status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
    except httpx.TransportError:
        return False
