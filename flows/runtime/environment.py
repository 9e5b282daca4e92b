"""What the environment must say before Prefect and MLflow are first imported.

Both read their settings on import, so this module imports neither; `cli.py` calls it first of all.
"""

import os
from pathlib import Path

from storage.settings import quiet_environment


def home() -> Path:
    """The home folder: `DREAMSHARD_HOME`, or `.dreamshard` in the current folder."""
    return Path(os.environ.get("DREAMSHARD_HOME", ".dreamshard")).absolute()


def prepare(home_folder: Path | None = None, *, log_level: str = "INFO") -> Path:
    """Point Prefect and MLflow into the home; what the caller's environment already says is kept.

    Args:
        home_folder: overrides `DREAMSHARD_HOME`.
        log_level: of Prefect's console and API logs.

    Returns:
        The home, absolute, so that processes in other folders see the same one.
    """
    folder = (home_folder or home()).expanduser().absolute()
    os.environ["DREAMSHARD_HOME"] = str(folder)
    quiet_environment()
    wanted = {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / "results"),
        "PREFECT_LOGGING_LEVEL": log_level,
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # 25 s were seen, minutes on a crowded machine
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    return folder
