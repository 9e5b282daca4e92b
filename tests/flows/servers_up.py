"""`dreamshard up` as a separate process, once per module that needs real servers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.ports import free_port


class Up:
    """A running `dreamshard up`: what it printed, and its process."""

    def __init__(self, process: "subprocess.Popen[str]", home: Path):
        lines = [process.stdout.readline() for _ in range(5)]  # printed when everything answers
        assert [line.split()[0] for line in lines] == ["Prefect", "MLflow", "home", "model", "Start"], lines
        self.process, self.home = process, home
        self.prefect = lines[0].split()[1].removesuffix("/v2/deployments")
        self.mlflow = lines[1].split()[1].removesuffix("/#/models")


@contextmanager
def servers_up(home: Path, **more: str) -> Iterator[Up]:
    """Start Prefect, MLflow, a worker and all deployments on free ports, outside a checkout; stopped as by Ctrl-C.

    Args:
        more: environment variables.
    """
    environment = {**os.environ, "DREAMSHARD_HOME": str(home), **more}
    environment.pop("PREFECT_HOME", None)
    command = [sys.executable, "-m", "flows.cli.app", "up"]
    command += ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    with subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Up(process, home)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=240)


def until(check: Callable[[], Any], seconds: float) -> Any:
    """Poll `check` until it returns something true, and return that; servers offer no event to wait for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = check()
        if result:
            return result
        time.sleep(0.3)
    raise AssertionError(f"{check.__name__} did not come true within {seconds} s")


def api(servers: Up, path: str, **body):
    """The answer of Prefect's API to a POST; asked again, as Prefect's own client does, while its database is busy.

    A question that got no answer in time is asked again too; a request that changes something is not.
    """
    answers: list[httpx.Response] = []

    def answered() -> bool:
        try:
            answers.append(httpx.post(f"{servers.prefect}/api/{path}", json=body, timeout=60))
        except httpx.TimeoutException:
            if not path.endswith("/filter"):
                raise
            return False
        return answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

    until(answered, 300)
    answers[-1].raise_for_status()
    return answers[-1].json()


def deployment(servers: Up, name: str) -> dict:
    """The deployment called `FLOW/NAME`, or the only one of a flow, from Prefect's API."""
    flow, _, model = name.partition("/")
    deployments = api(servers, "deployments/filter", flows={"name": {"any_": [flow]}})
    return next(deployment for deployment in deployments if model in ("", deployment["name"]))
