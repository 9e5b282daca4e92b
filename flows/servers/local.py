"""The process that `dreamshard up` becomes: it runs Prefect's server, MLflow's server and a worker on this machine's loopback
interface, and waits, so it imports nothing that they need.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

_say = partial(print, flush=True)

_SERVER = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_UI_V2_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Prefect's server remembers holders of slots across restarts and deletes runs that ended 90 days ago; its newer pages."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Servers on two ports, deployments, and a worker.

    Attributes:
        home: for logs and Prefect's database, unless `PREFECT_SERVER_DATABASE_CONNECTION_URL` names another.
        prefect_port: of Prefect, whose API is at `/api` and whose pages are at `/v2`.
        mlflow_port: of MLflow, whose database is that of `MLFLOW_BACKEND_STORE_URI`: every user reads a command's password.
        files: options of MLflow's server.
        deploy: command of Python that deploys everything and says so.
        worker: command of the worker; empty for none.
        processes: all by name.
    """

    home: str
    prefect_port: int
    mlflow_port: int
    files: list[str]
    deploy: list[str]
    worker: list[str]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        """Folder of what the processes print."""
        return Path(self.home) / "logs"

    def run(self) -> None:
        """Run everything until a server ends; a worker that ends is started again.

        Raises:
            ValueError: a port is taken.
            RuntimeError: a server ended or did not start; the message has its last lines or their file.
        """
        for port in (self.prefect_port, self.mlflow_port):
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError as error:
                raise ValueError(
                    f"port {port} of 127.0.0.1 is taken, perhaps by another `dreamshard up`; end it, or give another port"
                ) from error
        prefect, mlflow = f"http://127.0.0.1:{self.prefect_port}", f"http://127.0.0.1:{self.mlflow_port}"
        variables = {
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": f"{self.home}/prefect/pages",
            "PREFECT_API_URL": f"{prefect}/api",
            "PREFECT_UI_URL": f"{prefect}/v2",
            "PREFECT_LOGGING_LEVEL": "INFO",
            "MLFLOW_TRACKING_URI": mlflow,
        }
        database = {"MLFLOW_BACKEND_STORE_URI": os.environ.pop("MLFLOW_BACKEND_STORE_URI")}
        os.environ.update({**_SERVER, **os.environ, **variables})
        try:
            start = f"prefect server start --host 127.0.0.1 --port {self.prefect_port}"
            self.start("prefect", *start.split())
            start = f"mlflow server --host 127.0.0.1 --port {self.mlflow_port} --workers 1 --uvicorn-opts"
            self.start("mlflow", *start.split(), "--log-level warning", *self.files, **database)
            for page in (f"{prefect}/api/health", f"{prefect}/v2/", f"{mlflow}/health"):
                self.wait_for(page)
            _say(
                f"Prefect  {prefect}/v2/deployments\nMLflow   {mlflow}/#/models\nhome     {self.home} (logs in {self.logs})"
            )
            if subprocess.run([sys.executable, "-m", *self.deploy], check=False).returncode:
                raise RuntimeError("deploying failed, so the servers were stopped")
            _say("Start `retrain` from Prefect's Deployments page. Ctrl-C stops everything.")
            if self.worker:
                self.start("worker", *self.worker)
            while (ended := self.first_ended()) in (None, "worker"):
                if ended:
                    _say("the worker ended and is being restarted; restart its runs to continue them")
                    self.start("worker", *self.worker)
                time.sleep(1)
        finally:
            for process in reversed(self.processes.values()):
                process.terminate()
                try:
                    process.wait(30.0)
                except subprocess.TimeoutExpired:
                    process.kill()
        raise RuntimeError(f"{ended} ended, so the others were stopped too; see {self.logs / ended}.log")

    def first_ended(self) -> str | None:
        """The name of a process that ended, or None."""
        return next((name for name, process in self.processes.items() if process.poll() is not None), None)

    def start(self, name: str, *command: str, **more: str) -> None:
        """Start `python -m COMMAND` with `more` variables; its output goes to `<home>/logs/NAME.log`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=os.environ | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others in order
            )

    def wait_for(self, url: str) -> None:
        """Wait until a server has a page at `url`, perhaps behind a login.

        Raises:
            RuntimeError: a process ended, or none answers in time; the message has its last lines.
        """
        deadline = time.monotonic() + 600.0  # the first start creates two databases: minutes on a busy machine
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(url, timeout=5.0).status_code in (httpx.codes.OK, httpx.codes.UNAUTHORIZED):
                    return
            if (ended := self.first_ended()) or time.monotonic() > deadline:
                log = self.logs / f"{ended or 'prefect'}.log"
                last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
                raise RuntimeError(f"no server answers at {url}: {last}; see {log}")
            time.sleep(0.2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        Servers(**json.loads(sys.argv[1])).run()
    except KeyboardInterrupt:
        sys.exit(0)
    except (ValueError, RuntimeError) as error:
        sys.exit(f"dreamshard: {error}")
