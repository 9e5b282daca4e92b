"""Which state of the project's source is running, for whoever asks later what made a version."""

import os
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def commit() -> str:
    """The commit of the checkout, with `-dirty` where files differ from it.

    Outside of a checkout what `DREAMSHARD_COMMIT` says, e.g. in an image, else the release.
    """
    folder = Path(__file__).parents[2]
    if (folder / ".git").exists():
        git = ("git", "-C", str(folder))
        try:
            head = subprocess.run(
                [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
            ).stdout.strip()
            changed = (
                subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False).returncode != 0
            )
        except (OSError, subprocess.CalledProcessError):  # no git here, or another user's checkout, which it refuses
            return _told()
        return f"{head}-dirty" if changed else head
    return _told()


def _told() -> str:
    return os.environ.get("DREAMSHARD_COMMIT") or f"release {version('dreamshard')}"
