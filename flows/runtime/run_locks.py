"""Locks between flows: one measures per host, one writes the registry, one continues a training; a killed holder frees them.

A file lock separates processes that share a home or a folder as their store, and a concurrency limit of Prefect all that
share a server. `deploy` makes the limit; without it, the file lock alone holds.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

from flows.runtime.tasks import announce
from storage.store import Store

REGISTRY = "dreamshard-registry"
LEASE_S = 60.0
"""The shortest lease that Prefect's server grants."""

MEASURING_LOCK = "DREAMSHARD_MEASURING_LOCK"
"""Environment variable: the file that every measuring process of a host locks; mount its folder in containers."""

_DEFAULT = "/tmp/dreamshard/measuring.lock"  # TMPDIR differs between the users and jobs of a host

logger = logging.getLogger(__name__)


@contextmanager
def registry_lock(store: Store) -> Iterator[None]:
    """Nobody else in this home or store, or on this Prefect server, registers or promotes during the block."""
    has_server = get_current_settings().api.url is not None
    with store_lock(store, "registry"), concurrency(REGISTRY if has_server else [], lease_duration=LEASE_S):
        yield


def store_lock(store: Store, name: str) -> AbstractContextManager[None]:
    """No other process holds `name` in this store during the block; in this home, if the store is no folder."""
    root = store.store_root
    folder = (root if isinstance(root, Path) else store.home) / "locks"
    folder.mkdir(exist_ok=True)
    return locked(folder / f"{name}.lock")


def measuring() -> AbstractContextManager[None]:
    """Keep all other processes of this host, of any home or user, from measuring: they would slow each other down.

    A process that holds it may take it again.

    Raises:
        ValueError: the file that `DREAMSHARD_MEASURING_LOCK` names cannot be made.
    """
    path = Path(os.environ.get(MEASURING_LOCK) or _DEFAULT)
    with suppress(OSError):  # it is there, perhaps made by another user; `locked` says if it cannot be made
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    return locked(path, is_singleton=True)


@contextmanager
def locked(path: Path, *, is_singleton: bool = False) -> Iterator[None]:
    """Hold the host-wide lock on `path`, a file in an existing folder; made if missing, writable by every user.

    Args:
        is_singleton: this process may take it again while it holds it.

    Raises:
        ValueError: the file cannot be made.
    """
    lock = FileLock(path, mode=0o666, thread_local=not is_singleton, is_singleton=is_singleton)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            said = announce if FlowRunContext.get() else logger.info  # on the page of the run
            said(f"waiting for another run, which holds the lock {path}")
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
