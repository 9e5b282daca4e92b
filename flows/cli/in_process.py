"""Flows run in this process, with Prefect's temporary server."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from dreamshard.files import full_disk
from flows.cli import terminal
from flows.servers import temporary_server
from storage.settings import Settings

NEEDED_BYTES = 16 * 2**20  # Prefect's and MLflow's new databases take about 6 MiB

_SIGTERM_OF_PREFECT = "_prefect_sigterm_handler"
"""Name of Prefect's handler, which it installs while a flow runs."""


def run_flow(flow: Callable[..., dict[str, Any]], options: object, *, quiet: bool, **progress: bool) -> dict[str, Any]:
    """Run a deployed flow with its options in this process, with progress bars, and return its outcome.

    The flow must be imported before, since MLflow and Prefect set up their logging on import.
    """
    with ExitStack() as stack:
        with terminal.waiting_for("Prefect's server"):
            stack.enter_context(in_process())
        stack.enter_context(terminal.progress_bars(quiet=quiet, **progress))
        return flow(**vars(options))


@contextmanager
def in_process() -> Iterator[None]:
    """Let flows run in this process: a temporary server unless one is configured, no heartbeats, signals end it at once."""
    full_disk.check(Settings.from_environment().home, NEEDED_BYTES, "a run with its databases")
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.utilities import engine as prefect_engine

    from flows.forms import flow_run_owners

    for name in (
        "alembic",
        "mlflow",
        "httpx",
        "EventsWorker",
        "APILogWorker",
    ):  # Prefect is quiet already
        logging.getLogger(name).setLevel(logging.ERROR)
    temporary_server.start_it_our_way()
    get_client(sync_client=True)  # starts the temporary server now: its environment cannot hold the setting below
    flow_run_owners.end_abandoned()
    before = {number: signal.signal(number, _stop_at_once) for number in (signal.SIGINT, signal.SIGTERM)}
    of_prefect = getattr(prefect_engine, _SIGTERM_OF_PREFECT)
    setattr(prefect_engine, _SIGTERM_OF_PREFECT, _stop_at_once)  # otherwise it replaces ours while a flow runs
    try:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield
    finally:
        setattr(prefect_engine, _SIGTERM_OF_PREFECT, of_prefect)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_at_once(number: int, _frame: FrameType | None) -> None:
    """Exit on Ctrl-C or SIGTERM without waiting: every file is complete, and the next run continues from there.

    A terminal's Ctrl-C, and what a job scheduler or systemd sends, also end Prefect's temporary server, so shutting down in
    order would try to reach it for minutes. Ranks and server end when this process is gone.
    """
    how = b"interrupted" if number == signal.SIGINT else b"ended by SIGTERM"
    os.write(2, b"\ndreamshard: %s; finished work is kept, and the same command continues from it\n" % how)
    os._exit(128 + number)
