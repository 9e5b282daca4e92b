"""Identities that are recorded: of a result, by everything that it was made from, and of the source that is running."""

import importlib.metadata
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from dreamshard.files import json_digest


def content_key(*parts: Any) -> str:
    """16 hexadecimal digits for `parts` (numbers, text, lists, dataclasses) and the version of this package."""
    return json_digest(to_jsonable_python([*parts, importlib.metadata.version("dreamshard")]), sort_keys=True)


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
    return os.environ.get("DREAMSHARD_COMMIT") or f"release {importlib.metadata.version('dreamshard')}"
