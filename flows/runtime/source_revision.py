"""The revision of the project's source that is running, recorded with every version that it produces."""

import os
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def source_revision() -> str:
    """The commit of the checkout, with `-dirty` if files differ from it.

    Outside of a checkout: the value of `DREAMSHARD_COMMIT`, e.g. in an image, else the release.
    """
    checkout = Path(__file__).parents[2]
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        with suppress(OSError, subprocess.CalledProcessError):  # git is missing, or refuses another user's checkout
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return os.environ.get("DREAMSHARD_COMMIT") or f"release {version('dreamshard')}"
