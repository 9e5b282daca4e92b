"""Prefect tasks that are retried if that can help: measurements, and calls to a server or disk that may answer later.

Prefect caches none of their results: keys of kept content are in `identity`.
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

_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "BAD_REQUEST")
"""MLflow's codes for answers 500, 503 and 429 of a server, for a database that is locked or unavailable, and for one of two
runs that bring the same new dataset at once."""


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
