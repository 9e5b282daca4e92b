"""Flows run in this process, with Prefect's temporary server."""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flows.cli import terminal


def run_flow(flow: Callable[..., dict[str, Any]], options: object, *, quiet: bool, **progress: bool) -> dict[str, Any]:
    """Run a deployed flow with its options in this process, with progress bars, and return its outcome.

    The flow must be imported before, since MLflow and Prefect set up their logging on import.
    """
    with in_process(), terminal.progress_bars(quiet=quiet, **progress):
        return flow(**vars(options))


@contextmanager
def in_process() -> Iterator[None]:
    """Let flows run in this process: a temporary server unless one is configured, no heartbeats, Ctrl-C ends at once."""
    from prefect.client.orchestration import get_client
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    for name in (
        "alembic",
        "mlflow",
        "httpx",
        "distributed",
        "EventsWorker",
        "APILogWorker",
    ):  # Prefect is quiet already
        logging.getLogger(name).setLevel(logging.ERROR)
    get_client(sync_client=True)  # starts the temporary server now: its environment cannot hold the setting below
    server = SubprocessASGIServer().server_process
    if server is not None:
        _end_with_us(server.pid)
    before = signal.signal(signal.SIGINT, _stop_at_once)
    try:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_at_once(_signal: int, _frame: FrameType | None) -> None:
    """Exit on Ctrl-C without waiting: every file is complete, and the next run continues from there.

    The terminal's Ctrl-C also ends Prefect's temporary server, so shutting down in order would try to reach it for a
    minute. Ranks and server end when this process is gone.
    """
    os.write(2, b"\ndreamshard: interrupted; finished work is kept, and the same command continues from it\n")
    os._exit(130)


def _end_with_us(pid: int) -> None:
    """End that process when this one ends, even by `kill -9`: a shell waits until our end of a pipe closes."""
    subprocess.Popen(
        ["sh", "-c", 'read -r _; kill "$0" 2>/dev/null', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal must not end the watcher first
    )
