"""Prefect tasks that are retried where that can help: measurements, and calls to a server or disk that may answer later.

Prefect caches none of their results: keys of what is kept are in `content_keys`.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import exponential_backoff

from dreamshard.testbeds.base import MeasurementError
from storage import filesystem
from storage.mlflow_store import runs  # noqa: F401 - first: it turns MLflow's telemetry off

# isort: split
from mlflow.exceptions import MlflowException

P = ParamSpec("P")
R = TypeVar("R")

_DEFAULTS: dict[str, Any] = {"cache_policy": NO_CACHE, "retry_delay_seconds": exponential_backoff(2)}
_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
"""MLflow's codes for answers 500, 503 and 429 of a server, and for a database that is locked or unavailable."""


def retried_task(name: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that is tried again when a server, a store or a disk failed."""
    return task(name=name, **{**_DEFAULTS, "retries": 2, "retry_condition_fn": may_pass, **options})


def measuring_task(name: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that measures: it is also tried again, with fresh ranks, when a measurement failed."""
    return task(name=name, **{**_DEFAULTS, "retries": 1, "retry_condition_fn": measurement_failed, **options})


def measurement_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry failed measurements, and what `may_pass` retries."""
    return isinstance(state.result(raise_on_failure=False), MeasurementError) or may_pass(task, run, state)


def may_pass(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry failures of a server, a store or a disk, and errors raised from them; wrong input stays wrong."""
    return passing(state.result(raise_on_failure=False))


def passing(error: object) -> bool:
    """Whether an error, or its cause, is one of a server, a network or a disk that may soon work again."""
    if isinstance(error, MlflowException):
        is_passing = error.error_code in _PASSING
    else:
        is_passing = isinstance(error, httpx.TransportError) or filesystem.may_pass(error)
    cause = getattr(error, "__cause__", None)
    return is_passing or (cause is not None and passing(cause))
