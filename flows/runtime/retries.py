"""What to retry: measurements, with fresh ranks, and calls to a server or a disk that may answer later."""

from typing import Any

import httpx
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from dreamshard.files import foreign
from dreamshard.testbeds.base import MeasurementError
from storage.mlflow_store import runs  # noqa: F401 - first: it turns MLflow's telemetry off

# isort: split
from mlflow.exceptions import MlflowException

_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
"""MLflow's codes for answers 500, 503 and 429 of a server, and for a database that is locked or unavailable."""


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
        is_passing = isinstance(error, httpx.TransportError) or foreign.may_pass(error)
    cause = getattr(error, "__cause__", None)
    return is_passing or (cause is not None and passing(cause))
