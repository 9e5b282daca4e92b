"""A folder that nobody may write, not even root, while a block runs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount the folder over itself, for reading only; skips the test where this user or container may not mount."""
    done = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no folder can be mounted here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
