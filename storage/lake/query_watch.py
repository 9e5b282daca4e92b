"""Ends a query that takes too long or fills the disk, which DuckDB itself does not bound."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

LEAST_FREE_BYTES = 2**29
"""What a query that writes leaves free on the disk of temporary files."""

_EVERY_S = 0.1
_PATIENCE_S = 20.0  # from the first interruption, which a query that waits for itself does not notice
_CTRL_C = "Query interrupted"  # DuckDB's own error after a signal, which it notices between parts of a query only


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a query may use.

    Attributes:
        seconds: until its answer is written or printed.
        file_bytes: of a file in its folder, such as its answer's.
    """

    seconds: float
    file_bytes: int


GiveUp = Callable[[str], object]
"""Ends the process, which is all that helps against a query that does not end when it is interrupted; told why."""


@contextmanager
def watched(
    connection: duckdb.DuckDBPyConnection, folder: Path, bounds: Bounds, give_up: GiveUp | None = None
) -> Iterator[Callable[[], None]]:
    """Interrupt what the connection runs in the block once it exceeds a bound.

    Yields a function that raises the same error while DuckDB runs nothing, for whoever works on rows that it has answered.

    Args:
        connection: with the settings `confined.BEFORE`, without which a write that is interrupted may never end.
        folder: of the query; the disk it is on is kept from running full.
        bounds: of the query.
        give_up: called in a thread if DuckDB goes on after being interrupted for 20 s; None to wait for as long as it takes.

    Raises:
        ValueError: a bound was exceeded; the message says which.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    over, problems, by_hand = threading.Event(), list[str](), threading.Event()

    def watch() -> None:
        interrupted_s = 0.0
        while not over.wait(_EVERY_S):
            if not problems and (problem := _exceeded(folder, bounds, until - time.monotonic())):
                problems.append(problem)
            if signals is not None and signal.SIGINT in _arrived(signals):
                by_hand.set()
            if problems or by_hand.is_set():  # again and again: between two steps of the query nothing is interrupted
                connection.interrupt()
                interrupted_s = interrupted_s or time.monotonic()
                if give_up is not None and time.monotonic() - interrupted_s > _PATIENCE_S:
                    give_up(problems[0] if problems else "this query was to end, and did not")

    def check() -> None:
        if problems:
            raise ValueError(problems[0])

    with _signals() as signals:
        until = time.monotonic() + bounds.seconds
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield check
        except (duckdb.Error, RuntimeError) as error:
            if problems:
                raise ValueError(problems[0]) from error
            if signals is not None and signal.SIGINT in _arrived(signals):
                by_hand.set()
            if by_hand.is_set() or str(error) == _CTRL_C:
                raise KeyboardInterrupt from error
            raise
        finally:
            over.set()
            thread.join()


@contextmanager
def _signals() -> Iterator[int | None]:
    """A pipe of the numbers of signals that arrive, also while Python's own handlers wait for the query.

    None where Ctrl-C is not for this thread.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield None
        return
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    try:
        yield ends[0]
    finally:
        signal.set_wakeup_fd(before)
        for end in ends:
            os.close(end)


def _arrived(signals: int) -> bytes:
    try:
        return os.read(signals, 64)
    except BlockingIOError:
        return b""


def _exceeded(folder: Path, bounds: Bounds, left_s: float) -> str | None:
    if left_s <= 0:
        return (
            f"this query took more than {bounds.seconds:g} s, so it was stopped before its answer was complete; ask for "
            "fewer rows or joins, or raise --seconds"
        )
    try:
        largest = max((file.stat().st_size for file in folder.iterdir() if file.is_file()), default=0)
        has_written = any(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        free = shutil.disk_usage(folder).free
    except OSError:  # a file that is gone meanwhile
        return None
    if largest > bounds.file_bytes:
        return (
            f"the answer of this query has more than {bounds.file_bytes / 2**30:.3g} GiB, so it was stopped and nothing was "
            "written; ask for fewer rows or columns, or raise --memory-gb, four times which is the most that it may write"
        )
    if has_written and free < LEAST_FREE_BYTES:
        return (
            f"this query left less than {LEAST_FREE_BYTES / 2**20:.0f} MiB free on the disk of {folder.parent.parent}, so it "
            "was stopped and nothing was written; ask for less, or set TMPDIR to a folder with more room"
        )
    return None
