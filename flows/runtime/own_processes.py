"""Functions in processes of their own: several at once, one thread each, none of which outlives this process.

A function that dies, say for want of memory, takes nothing else along. This module imports nothing slow: a new process
settles its number of threads before it loads any library that computes.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold


class ProcessDiedError(RuntimeError):
    """A process ended without an answer."""


class _Traceback(Exception):  # noqa: N818 - the cause of an error from another process
    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


class OwnProcesses:
    """Runs functions in processes that all end when this block does, by whatever way, or when this process is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[SpawnProcess] = set()
        self._closed = False

    def __enter__(self) -> "OwnProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `function` returns; may be called by several threads. Function, arguments and result are pickled.

        Raises:
            Exception: what the function raised.
            ProcessDiedError: the process was killed, or the block has ended.
        """
        receiver, sender = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=_answer, args=(sender, pickle.dumps((function, args, kwargs))))
        with self._lock:
            if self._closed:
                raise ProcessDiedError("the run has ended, so nothing more is started")
            process.start()
            self._running.add(process)
        sender.close()
        try:
            error, result = receiver.recv()
        except EOFError:
            process.join()
            raise ProcessDiedError(
                f"its process ended with exit code {process.exitcode} and no result, as when it is killed for want of "
                "memory; run fewer at once"
            ) from None
        finally:
            receiver.close()
            process.join()
            with self._lock:
                self._running.discard(process)
        if error is not None:
            failure, text = error
            raise failure from _Traceback(text)
        answer: R = result
        return answer


def _answer(sender: Connection, call: bytes) -> None:
    """Run the call and send (error, result)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer: tuple[tuple[Exception, str] | None, Any]
    try:
        answer = (None, _result(call))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        answer = ((_picklable(error), traceback.format_exc()), None)
    sender.send(answer)


def _result(call: bytes) -> Any:
    function, args, kwargs = pickle.loads(call)
    return function(*args, **kwargs)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _picklable(error: Exception) -> Exception:
    """The error, or its message where the parent could not rebuild it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever an error of any library does when it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
