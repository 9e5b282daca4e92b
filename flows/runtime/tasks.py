"""Steps of a run: Prefect tasks that are retried if that can help, and their progress in the terminal and as an artifact.

A failed measurement is repeated, and so is a call to a server or disk that may answer later. Prefect caches no result of a
task: kept content has a `content_key`.
"""

import importlib.metadata
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import Task, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.tasks import exponential_backoff
from pydantic_core import to_jsonable_python

from dreamshard.files import json_digest
from dreamshard.testbeds.base import MeasurementError
from storage import filesystem
from storage.mlflow_store import runs  # noqa: F401 - first: it turns MLflow's telemetry off

# isort: split
from mlflow.exceptions import MlflowException

P = ParamSpec("P")
R = TypeVar("R")

_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "BAD_REQUEST")
"""MLflow's codes for answers 500, 503 and 429 of a server, for a database that is locked or unavailable, and for one of two
runs that bring the same new dataset at once."""

Listener = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) whenever a part of a stage is done."""

STAGES = ("ingest", "tasks", "train", "evaluate", "promote", "plan")
"""Stages of the whole chain; `measure` and `exchange` are steps of `train`."""

ANNOUNCEMENT = ""
"""The stage of sentences that belong to none."""

_LEAST_S = 2.0
"""Between two updates of an artifact."""

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("_listeners", default=())


def content_key(*parts: Any) -> str:
    """16 hexadecimal digits for `parts` (numbers, text, lists, dataclasses) and the version of this package."""
    return json_digest(to_jsonable_python([*parts, importlib.metadata.version("dreamshard")]), sort_keys=True)


def retried_task(name: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that is tried again when a server, a store, a disk or a measurement failed, with fresh ranks."""
    defaults: dict[str, Any] = {"cache_policy": NO_CACHE, "retries": 2, "retry_delay_seconds": exponential_backoff(2)}
    return task(name=name, retry_condition_fn=may_pass, **defaults | options)


def may_pass(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry such failures, and errors raised from them; wrong input stays wrong."""
    error: Any = state.result(raise_on_failure=False)
    while error is not None and not passing(error):
        error = getattr(error, "__cause__", None)
    return error is not None


def passing(error: object) -> bool:
    """Whether a rank failed, or a server, a network or a disk that may soon work again."""
    if isinstance(error, MlflowException):
        return error.error_code in _PASSING
    return isinstance(error, httpx.TransportError | MeasurementError) or filesystem.may_pass(error)


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
