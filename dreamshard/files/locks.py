"""Locks between the processes of one host, which end with the process that holds them."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

MEASURING_LOCK = "DREAMSHARD_MEASURING_LOCK"
"""Environment variable: the file that every measuring process of a host locks; mount its folder in containers."""

_DEFAULT = "/tmp/dreamshard/measuring.lock"  # TMPDIR differs between the users and jobs of a host


@contextmanager
def measuring() -> Iterator[None]:
    """Keep all other processes of this host, of any home or user, from measuring: they would slow each other down.

    Raises:
        ValueError: the file that `DREAMSHARD_MEASURING_LOCK` names cannot be made.
    """
    path = Path(os.environ.get(MEASURING_LOCK) or _DEFAULT)
    with suppress(OSError):  # it is there, perhaps made by another user; `locked` says if it cannot be made
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    with locked(path, "another process measures on this host"):
        yield


@contextmanager
def locked(path: Path, reason: str) -> Iterator[None]:
    """Hold the host-wide lock on `path`, a file in an existing folder.

    Args:
        path: made if missing, writable by every user.
        reason: logged while another process holds the lock.

    Raises:
        ValueError: the file cannot be made.
    """
    lock = FileLock(path, mode=0o666)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            logger.info("%s; waiting for the lock %s", reason, path)
            lock.acquire()
    except OSError as error:
        raise ValueError(
            f"the lock {path} cannot be made ({error.strerror}); make its folder writable, or set {MEASURING_LOCK} to "
            "another file"
        ) from error
    try:
        yield
    finally:
        lock.release()
