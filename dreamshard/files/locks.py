"""Measurements on one host take turns: two that share cores or a GPU would time each other.

The lock is the system's, on a file: it needs no server, and it is gone with the process that holds it.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

MEASURING_LOCK = "DREAMSHARD_MEASURING_LOCK"
"""Where the file lies that all who measure on a host lock; containers need one folder of the host mounted for it."""

_DEFAULT = "/tmp/dreamshard.measuring.lock"  # not TMPDIR's, which differs between the users and jobs of a host


@contextmanager
def measuring() -> Iterator[None]:
    """Within this block no other process of this host measures, whichever home or user it belongs to.

    Raises:
        ValueError: the file that `DREAMSHARD_MEASURING_LOCK` names cannot be made.
    """
    with locked(Path(os.environ.get(MEASURING_LOCK) or _DEFAULT), "another process measures on this host"):
        yield


@contextmanager
def locked(path: Path, why: str) -> Iterator[None]:
    """Within this block nobody else of this host holds the lock on `path`.

    Args:
        path: a file in a folder that exists; it is made where it is not there, and it stays.
        why: logged where somebody else holds it, so that a person knows what is waited for.

    Raises:
        ValueError: the file cannot be made.
    """
    handle = _acquired(path, why)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough where a process forked inside holds the file too
        os.close(handle)


def _acquired(path: Path, why: str) -> int:
    """The lock on the file that lies at `path` once it is held: one that was cleaned away meanwhile counts for nothing."""
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s; waiting for its turn (lock %s)", why, path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)


def _opened(path: Path) -> int:
    """To read only, which suffices for a lock, so that users share a file that only one of them may write."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        pass
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(
            f"the lock {path} cannot be made ({error.strerror}), so two processes could measure at once and time each "
            f"other; make its folder writable, or point {MEASURING_LOCK} at a file that all who measure here can read"
        ) from error
