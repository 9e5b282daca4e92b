"""What is worth trying again: measurements with fresh ranks, and calls to a server or a disk that may answer later."""

import faulthandler
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import httpx
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from dreamshard.files import store_errors
from dreamshard.testbeds.base import MeasurementError
from storage.mlflow_store import runs  # noqa: F401 - first: it turns MLflow's telemetry off

# isort: split
from mlflow.exceptions import MlflowException

_PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
"""MLflow's codes of what a server answers with 500, 503 or 429; also those of a database that is locked or away."""

_LAST_RESORT_S = 30.0
_STDERR = 2  # the process's own, whatever stands in for it in Python


def measurement_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry where fresh ranks can help, and what `may_pass` retries; wrong input stays wrong."""
    return isinstance(state.result(raise_on_failure=False), MeasurementError) or may_pass(task, run, state)


def may_pass(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry what a server, a store or a disk failed at, and what was made of such an error; wrong input stays wrong."""
    return passing(state.result(raise_on_failure=False))


def passing(error: object) -> bool:
    """Whether an error, or what it came from, is of a server, a network or a disk that may be well again in a moment."""
    if isinstance(error, MlflowException):
        found = error.error_code in _PASSING
    else:
        found = isinstance(error, httpx.TransportError) or store_errors.may_pass(error)
    cause = getattr(error, "__cause__", None)
    return found or (cause is not None and passing(cause))


@contextmanager
def progressing(limit_s: float, what: str) -> Iterator[Callable[[], None]]:
    """Give the function to call whenever something was done; too long without it is an error. In the main thread only.

    Args:
        limit_s: from one call to the next.
        what: has not come in that time, for the message.

    Raises:
        MeasurementError: it has not come. Where even that cannot be raised, since the process hangs in code that is not
            Python's, it exits `_LAST_RESORT_S` later and says on stderr where each thread hangs.
    """

    def too_late(_signal: int, _frame: FrameType | None) -> None:
        raise MeasurementError(
            f"{what} came within {limit_s:g} s, so measuring was ended; what was measured before is kept: see what the "
            "device waits for, then start again"
        )

    def rearm() -> None:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        faulthandler.dump_traceback_later(limit_s + _LAST_RESORT_S, exit=True, file=_STDERR)

    before = signal.signal(signal.SIGALRM, too_late)
    try:
        rearm()
        yield rearm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
