"""Commands in forks of one process that has imported everything, so that a test can start and kill many of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx

from tests.helpers.ports import free_port

_FORK = multiprocessing.get_context("forkserver")  # a new process without threads, whatever this one does
_FORK.set_forkserver_preload(["flows.cli.app", "flows.retrain", "scipy.stats", "torchrec", "bokeh.plotting", __name__])


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """The address of the API of a Prefect server that all forks share; its files are in `folder`."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"],
        env={**os.environ, "PREFECT_HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            address = f"http://127.0.0.1:{port}/api"
            while not _answers(f"{address}/health"):
                assert process.poll() is None, "Prefect's server did not start"
                time.sleep(0.2)
            yield address
        finally:
            process.send_signal(signal.SIGINT)


def forked(arguments: Sequence[str], home: Path, api: str, log: Path) -> BaseProcess:
    """Start `dreamshard` with these arguments, in a process group of its own; it prints to `log`."""
    process = _FORK.Process(target=_run, args=(list(arguments), str(home), api, str(log)))
    process.start()
    return process


def kill(process: BaseProcess, *, group: bool) -> None:
    """Kill -9 the process, or its whole group, and wait for its end."""
    assert process.pid is not None
    (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.join()


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


def _run(arguments: list[str], home: str, api: str, log: str) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.environ.update(DREAMSHARD_HOME=home, PREFECT_API_URL=api)
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.cli.app import main

    with temporary_settings({PREFECT_API_URL: api}):
        main(arguments)
