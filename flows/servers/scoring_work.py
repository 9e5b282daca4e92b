"""The computing of one request, in a thread of the scoring server, which can be stopped when nobody waits for it any more."""

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)


class StoppedError(BaseException):
    """What ends the computing; no `Exception`, so that nothing on the way takes it for an error of the model."""


class Work:
    """What one request makes a thread compute.

    The thread is ended by an exception that Python raises in it between two of its instructions: a call into a library ends
    first.

    Attributes:
        problem: what the model said where it refused; None where it did not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_stopped = False
        self.problem: str | None = None

    @contextmanager
    def here(self) -> Iterator[None]:
        """Computed by this thread in the block.

        Raises:
            StoppedError: it was stopped, before or in the block.
        """
        with self._lock:
            if self._is_stopped:
                raise StoppedError
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._thread = None
                _raise_in(threading.get_ident(), None)  # so that no late stop hits the thread's next request

    def stop(self) -> None:
        """End it, or keep it from beginning."""
        with self._lock:
            self._is_stopped = True
            if self._thread is not None:
                _raise_in(self._thread, StoppedError)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise it in a thread; None takes back what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))


CURRENT: ContextVar[Work] = ContextVar("CURRENT")
"""Of the request that is being answered."""


class StoppableModel:
    """An MLflow model whose predictions are the current work; MLflow shows its errors only after all of the request."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.metadata = model.metadata

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """The model's predictions.

        Raises:
            StoppedError: the work was stopped.
        """
        work = CURRENT.get()
        try:
            with work.here():
                return self._model.predict(data, params=params)
        except Exception as error:
            work.problem = getattr(error, "message", None)  # MLflow's error, with which a model refuses a request
            if work.problem is None:
                logger.exception("a request made the version fail")
                work.problem = f"the version failed ({type(error).__name__}), which it should not; see the server's log"
            raise
