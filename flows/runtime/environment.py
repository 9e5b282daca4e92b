"""The process: variables to set before Prefect and MLflow are imported, which read them then; and the source that runs."""

import importlib.metadata
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path


def prepare(home_folder: Path | None = None, *, log_level: str = "INFO") -> None:
    """Point Prefect into the home; variables that the caller has set are kept.

    Args:
        home_folder: home; by default `DREAMSHARD_HOME`, or `.dreamshard` in the current folder. The variable becomes an
            absolute path, so that processes in other folders use the same one.
        log_level: level of Prefect's console and API logs.
    """
    folder = (home_folder or Path(os.environ.get("DREAMSHARD_HOME", ".dreamshard"))).expanduser().absolute()
    os.environ["DREAMSHARD_HOME"] = str(folder)
    defaults = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / "results"),  # `storage.settings.RESULTS`
        "PREFECT_LOGGING_LEVEL": log_level,
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # 25 s are common, minutes occur on a busy machine
        "PYDANTIC_ERRORS_INCLUDE_URL": "0",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


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
