"""One home folder, or addresses by environment variable: where everything rests.

Belongs here: names of places and whether they can be written. What lies there is the business of the other modules.
"""

import os
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

QUIET: Mapping[str, str] = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""No telemetry, nothing said of every table of a new database, no progress bars for a dozen small files, and two
processes of MLflow's server instead of fifteen."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where everything rests.

    Attributes:
        home: the folder of everything that is kept on this machine, absolute.
        lake_root: Parquet datasets.
        catalog_path: the DuckDB file of views over the lake.
        tracking_uri: MLflow's runs and registry: a database, or a server's address.
        artifact_root: URI below which MLflow keeps files where `tracking_uri` is a database or our own server.
        checkpoints: training states.
        prefect_home: Prefect's own folder.
    """

    home: Path
    lake_root: Path
    catalog_path: Path
    tracking_uri: str
    artifact_root: str
    checkpoints: Path
    prefect_home: Path

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read `DREAMSHARD_HOME` (default `./.dreamshard`) and `MLFLOW_TRACKING_URI`; create the folders.

        Raises:
            ValueError: the home is a file, or cannot be created or written.
        """
        home = Path(environ.get("DREAMSHARD_HOME") or ".dreamshard").expanduser().absolute()
        settings = cls(
            home=home,
            lake_root=home / "lake",
            catalog_path=home / "catalog.duckdb",
            tracking_uri=environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}",
            artifact_root=(home / "mlartifacts").as_uri(),
            checkpoints=home / "checkpoints",
            prefect_home=home / "prefect",
        )
        try:
            for folder in (settings.lake_root, settings.checkpoints, settings.prefect_home):
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home):
                pass  # the permission bits alone do not say whether a file system takes a file
        except OSError as error:
            raise ValueError(
                f"the home {home} cannot be written ({error.strerror or error}), so nothing could be kept; point "
                "DREAMSHARD_HOME or --home at a folder you may write"
            ) from error
        return settings


def quiet_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Turn telemetry off; call it before mlflow or prefect is first imported. What the caller set is kept."""
    for name, value in QUIET.items():
        environ.setdefault(name, value)
