from pathlib import Path

from filelock import FileLock, Timeout


def is_free(path: Path) -> bool:
    """Whether another holder could have the lock at once."""
    try:
        with FileLock(path, timeout=0):
            return True
    except Timeout:
        return False
