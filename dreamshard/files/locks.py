"""Locks between the processes of one host.

The operating system holds each lock on a file, so locks need no server and end with the process that holds them.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

MEASURING_LOCK = "DREAMSHARD_MEASURING_LOCK"
"""Environment variable: the file that every measuring process of a host locks; mount its folder in containers."""

_DEFAULT = "/tmp/dreamshard.measuring.lock"  # TMPDIR differs between the users and jobs of a host


@contextmanager
def measuring() -> Iterator[None]:
    """Keep all other processes of this host, of any home or user, from measuring: they would slow each other down.

    Raises:
        ValueError: the file that `DREAMSHARD_MEASURING_LOCK` names cannot be made.
    """
    path = Path(os.environ.get(MEASURING_LOCK) or _DEFAULT)
    otherwise = f"set {MEASURING_LOCK} to a file that every measuring process can read"
    with locked(path, "another process measures on this host", otherwise):
        yield


@contextmanager
def locked(path: Path, reason: str, otherwise: str = "use another folder") -> Iterator[None]:
    """Hold the host-wide lock on `path`.

    Args:
        path: a file in an existing folder; it is made if missing and never removed.
        reason: logged while another process holds the lock.
        otherwise: what else to do where the file cannot be made.

    Raises:
        ValueError: the file cannot be made.
    """
    handle = _acquire(path, reason, otherwise)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock while a process forked inside holds the file too
        os.close(handle)


def _acquire(path: Path, reason: str, otherwise: str) -> int:
    """Lock the file and return its handle; starts over if the file was removed while waiting."""
    while True:
        handle = _open(path, otherwise)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s; waiting for the lock %s", reason, path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)


def _open(path: Path, otherwise: str) -> int:
    """Open read-only, which is enough to lock a file that another user owns."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        pass
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(
            f"the lock {path} cannot be made ({error.strerror}), so two processes could disturb each other; make its folder "
            f"writable, or {otherwise}"
        ) from error
