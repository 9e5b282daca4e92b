"""Keeps folders of the lake from being replaced while one is read.

Compaction (`compaction`) replaces a whole folder at once. A reader lists files and opens them later, so it holds a shared
lock from the one to the other. Writers add files and never wait. Other programs that read the lake (polars, DuckDB's shell)
hold no lock: in the moment of a replacement they see the files before it or after it, and an open may fail, but no row
is missing or twice in what they read.

The operating system holds the locks, so those of a killed process are gone; a reader may not write to the lake, so they are
on folders that exist.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.filesystem import AnyPath

WAITING = "compacting.lock"  # held by a compaction while it waits, so that new readers let it pass
_POLL_S = 0.02


@contextmanager
def reading(root: AnyPath) -> Iterator[None]:
    """Let no compaction replace a folder below `root`, the lake's, until the block ends; nothing in a bucket is replaced."""
    if not isinstance(root, Path) or not root.is_dir():
        yield
        return
    if (root / WAITING).exists():
        with _held(root / WAITING, fcntl.LOCK_SH):
            pass
    with _held(root, fcntl.LOCK_SH):
        yield


@contextmanager
def replacing(root: Path, wait_s: float) -> Iterator[None]:
    """Wait until nobody reads the lake, and let nobody begin until the block ends.

    Raises:
        ValueError: somebody still reads after `wait_s` seconds.
    """
    (root / WAITING).touch()
    with _held(root / WAITING, fcntl.LOCK_EX):
        handle = os.open(root, os.O_RDONLY)
        try:
            until = time.monotonic() + wait_s
            while not _locks(handle):
                if time.monotonic() > until:
                    raise ValueError(
                        f"{root} has been read without a pause for {wait_s:g} s, so its files could not be replaced and are "
                        "as before; end long queries, or run this again later"
                    )
                time.sleep(_POLL_S)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


@contextmanager
def _held(path: Path, kind: int) -> Iterator[None]:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock while a process forked inside holds it too
        os.close(handle)


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
