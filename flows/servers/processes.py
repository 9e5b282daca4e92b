"""The processes of `dreamshard up` (Prefect's server, MLflow's, a worker) and of `dreamshard serve`, until told to end.

Nothing here knows what the flows do. Every process is started as a child and ended by its id, with all its descendants.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from flows.servers.work_pool import settings_of_deployments
from storage.mlflow_store import server
from storage.mlflow_store.registry import MODEL
from storage.settings import QUIET, Settings

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
POOL = "dreamshard"
PREFECT = (sys.executable, "-m", "prefect")
PROJECT = Path(__file__).resolve().parents[2]
TEAM: Mapping[str, str] = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
}
"""A server that starts again still knows who holds a slot, and who waits for one asks for it every few seconds."""
STARTUP_S = 600.0
"""The first start creates two databases; 25 s were seen on an idle machine."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers answer, and the processes behind them.

    Attributes:
        prefect: its UI; the API is at `/api`.
        mlflow: its UI and API.
        environment: what a process needs to use them.
        processes: by name; the first that ends takes the others with it.
    """

    prefect: str
    mlflow: str
    environment: Mapping[str, str]
    processes: Mapping[str, "subprocess.Popen[bytes]"]


def free_port(preferred: int, host: str = LOOPBACK) -> int:
    """`preferred` if nothing listens there, else a port the system chooses."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"there is no free port on {host}, so no server can listen; close some, or give another --host")


@contextmanager
def running(
    settings: Settings,
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    host: str = LOOPBACK,
    worker: bool = True,
) -> Iterator[Addresses]:
    """All servers, the worker and the deployments, while the block runs.

    Args:
        settings: where databases and logs lie. A tracking URI that is a server's address (http) is used as it is and
            no MLflow server is started; a database's is what the server is started on. Prefect's database is what its
            own `PREFECT_SERVER_DATABASE_CONNECTION_URL` says, else a file of the home.
        prefect_port: tried first.
        mlflow_port: tried first.
        host: interface that the servers listen on; any but the loopback one lets others use them, without a password.
        worker: whether flows run on this machine too.

    Raises:
        OSError: `host` is none of this machine's interfaces.
        RuntimeError: a server did not start, or a deployment failed; the message ends with its last lines.
    """
    home, tracking_uri = settings.home, settings.tracking_uri
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    name = socket.getfqdn() if host == EVERYWHERE else host
    prefect = f"http://{name}:{free_port(prefect_port, host)}"
    mlflow = tracking_uri if tracking_uri.startswith("http") else f"http://{name}:{free_port(mlflow_port, host)}"
    environment = _environment(home, prefect, mlflow)
    with ExitStack() as ending:
        processes: dict[str, subprocess.Popen[bytes]] = {}

        def start(name: str, command: Sequence[str], **more: str) -> None:
            processes[name] = ending.enter_context(_process(name, command, {**environment, **more}, logs))

        start("prefect", [*PREFECT, "server", "start", "--host", host, "--port", prefect.rpartition(":")[2]])
        if mlflow != tracking_uri:
            port = int(mlflow.rpartition(":")[2])
            browsers = server.browsers(host, port, os.environ)
            command = server.command(settings, port, host)
            start("mlflow", command, **server.environment(settings), **browsers)
            _wait_for(f"{mlflow}/health", processes["mlflow"], logs / "mlflow.log")
        _wait_for(f"{prefect}/api/health", processes["prefect"], logs / "prefect.log")
        _run([*PREFECT, "work-pool", "create", POOL, "--type", "process", "--overwrite"], environment, logs)
        _run([*PREFECT, "--no-prompt", "deploy", "--all"], environment, logs)
        if worker:
            start("worker", [sys.executable, "-m", "flows.cli.app", "worker"])
        yield Addresses(prefect=prefect, mlflow=mlflow, environment=environment, processes=processes)


@contextmanager
def serving(
    settings: Settings, version: str, *, port: int = 5001, host: str = LOOPBACK, workers: int = 1
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """MLflow's scoring server on one version of the placer, while the block runs.

    Args:
        version: its number in the registry.
        port: tried first.
        host: the interface to listen on. The server asks nobody who they are.
        workers: processes, each with the placer in memory; requests within one share its interpreter.

    Yields:
        Its address, which answers at `/invocations` and `/health`, and its process.

    Raises:
        RuntimeError: it did not start; the message ends with its last lines.
    """
    logs = settings.home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    chosen = free_port(port)
    environment = {
        "OMP_NUM_THREADS": "1",  # a request is many small steps: torch's threads would only get in each other's way
        **os.environ,
        **QUIET,
        "MLFLOW_TRACKING_URI": settings.tracking_uri,
        "SERVING_MODEL_CONFIG": json.dumps({"version": version}),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # where uvicorn is
    }
    command = [
        *(sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", f"models:/{MODEL}/{version}"),
        *("--env-manager", "local", "--host", host, "--port", str(chosen), "--workers", str(workers)),
    ]
    address = f"http://{LOOPBACK if host == '0.0.0.0' else host}:{chosen}"
    with _process("serve", command, environment, logs) as process:
        _wait_for(f"{address}/health", process, logs / "serve.log")
        yield address, process


def wait_for_any(processes: Mapping[str, "subprocess.Popen[bytes]"], stop: threading.Event) -> str | None:
    """Block until `stop` is set or one of the processes ends; the name of the one that did."""
    ended: list[str] = []

    def watch(name: str, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        ended.append(name)
        stop.set()

    for name, process in processes.items():
        threading.Thread(target=watch, args=(name, process), daemon=True).start()
    stop.wait()
    return ended[0] if ended else None


def end(process: "subprocess.Popen[bytes]", patience_s: float = 10.0) -> None:
    """End a process and all its descendants: asked first, killed if they stay."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        process.wait()
        return
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=patience_s)
    for member in alive:
        if member.is_running():
            member.kill()
    psutil.wait_procs(alive, timeout=patience_s)
    process.wait()


def _environment(home: Path, prefect: str, mlflow: str) -> dict[str, str]:
    return {
        **TEAM,
        **os.environ,
        **QUIET,
        **settings_of_deployments(os.environ),
        "DREAMSHARD_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "results"),
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "MLFLOW_TRACKING_URI": mlflow,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


@contextmanager
def _process(
    name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    with (logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C reaches us alone, who then end all in order
        )
    try:
        yield process
    finally:
        end(process)


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
        raise RuntimeError(f"`{' '.join(command)}` failed, so no flow can be started: {_last_lines(log)}; see {log}")


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until the server answers; `process.wait` is the pause, so that a server that dies is noticed at once."""
    tries = int(STARTUP_S / 0.2)
    for _ in range(tries):
        try:
            if httpx.get(url, timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"the server for {url} ended while starting: {_last_lines(log)}; see {log}")
    raise RuntimeError(f"{url} did not answer within {STARTUP_S:.0f} s, so nothing can be run on it; see {log}")


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
