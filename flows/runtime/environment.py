"""Environment variables to set before Prefect and MLflow are first imported.

Both read their settings on import, so this module imports neither, and the command line calls it first.
"""

import os
from pathlib import Path

from storage.settings import RESULTS, quiet_environment


def prepare(home_folder: Path | None = None, *, log_level: str = "INFO") -> Path:
    """Point Prefect and MLflow into the home; variables that the caller has set are kept.

    Args:
        home_folder: home; by default `DREAMSHARD_HOME`, or `.dreamshard` in the current folder.
        log_level: level of Prefect's console and API logs.

    Returns:
        The home as an absolute path, so that processes in other folders use the same one.
    """
    folder = (home_folder or Path(os.environ.get("DREAMSHARD_HOME", ".dreamshard"))).expanduser().absolute()
    os.environ["DREAMSHARD_HOME"] = str(folder)
    quiet_environment()
    defaults = {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / RESULTS),
        "PREFECT_LOGGING_LEVEL": log_level,
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # 25 s are common, minutes occur on a busy machine
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return folder
