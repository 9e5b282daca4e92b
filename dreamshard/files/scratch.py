"""Folders for temporary files that go also where their process is killed: the next process that makes one removes them.

A folder is locked while it is used, which also keeps `systemd-tmpfiles` from removing what a process has had for days.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "dreamshard-scratch-"
_BEGINNING_S = 60.0  # a folder that was just made may not be locked yet


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder that only this user can read, in the folder of temporary files, while the block runs.

    Raises:
        OSError: there is no room for it.
    """
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        handle = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks, on which others cannot take it either
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock while a process forked inside holds it too
            os.close(handle)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _BEGINNING_S:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed meanwhile
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process still runs
            pass
        finally:
            os.close(handle)
