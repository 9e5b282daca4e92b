"""A folder outside the lake for one query: what does not fit into memory, and the file of its answer."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dreamshard.files.locks import locked

PREFIX = "dreamshard-sql-"
_LOCK = "lock"
_BEGINNING_S = 60.0  # a folder that was just made may not be locked yet


@contextmanager
def query_scratch() -> Iterator[Path]:
    """An empty folder that is removed with the block, or by the next query if the process is killed."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with locked(folder / _LOCK, "another query uses this folder"):
            (folder / "query").mkdir()
            yield folder / "query"


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _BEGINNING_S:
                continue
            handle = os.open(folder / _LOCK, os.O_RDONLY)
        except OSError:  # another user's, or removed meanwhile
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its query still runs
            pass
        finally:
            os.close(handle)
