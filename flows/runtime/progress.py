"""Progress of a run, shown in the terminal and as a Prefect artifact."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

Listener = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) whenever a part of a stage is done."""

STAGES = ("ingest", "tasks", "train", "evaluate", "promote", "plan")
"""Stages of the whole chain; `measure` and `exchange` are steps of `train`."""

ANNOUNCEMENT = ""
"""The stage of sentences that belong to none."""

_LEAST_S = 2.0
"""Between two updates of an artifact."""

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("_listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for all progress during the block."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


@contextmanager
def progress_artifact() -> Iterator[None]:
    """Show the progress of the current stage on the flow run's page in Prefect during the block."""
    if FlowRunContext.get() is None:
        yield
        return
    artifact: Any = create_progress_artifact(0.0, key="dreamshard-progress", description="starting")
    updated = 0.0

    def show(stage: str, done: int, total: int, note: str) -> None:
        nonlocal updated
        if stage != ANNOUNCEMENT and (done == total or time.monotonic() >= updated + _LEAST_S):
            updated = time.monotonic()
            update_progress_artifact(artifact, 100 * done / max(total, 1), f"{stage}: {done} of {total} {note}".strip())

    with listening(show):
        yield


def announce(sentence: str) -> None:
    """Say what was decided, in the log of the run and before the next progress bar."""
    get_run_logger().info("%s", sentence)
    report_progress(ANNOUNCEMENT, 1, 1, sentence)


def report_progress(stage: str, done: int, total: int, note: str = "") -> None:
    """Report that `done` of `total` parts of `stage` are finished."""
    for listener in _listeners.get():
        listener(stage, done, total, note)
