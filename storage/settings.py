"""One home folder, or addresses by environment variable: where everything rests.

Belongs here: names of places and whether they can be written. What lies there is the business of the other modules.

    DREAMSHARD_HOME       this machine's folder (default ./.dreamshard): databases, logs, locks, copies of lookups
    DREAMSHARD_STORE      what a team shares: lake, checkpoints, evaluation reports, MLflow's files. A folder, or any
                          address that fsspec knows (s3://bucket/prefix, gs://..., abfs://...); default: the home
    DREAMSHARD_ARTIFACTS  MLflow's files elsewhere than in the store
    MLFLOW_TRACKING_URI   MLflow's database or server; default: a database in the home

Credentials and endpoints are those of the libraries: for S3 `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_PROFILE`,
`AWS_DEFAULT_REGION` or the machine's role; for a server other than Amazon's `AWS_ENDPOINT_URL_S3`, which all of them
read (or `FSSPEC_S3_ENDPOINT_URL` for the store and `MLFLOW_S3_ENDPOINT_URL` for MLflow's files). An experiment of MLflow
keeps its files where it was created: change the store before the first run, or use another database.
"""

import os
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from storage.filesystem import Place, check_writable, place

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
        store: what a team shares lies below it; the home unless `DREAMSHARD_STORE` names another place.
        lake_root: Parquet datasets.
        checkpoints: training states.
        evaluations: their reports.
        comparisons: reports of versions compared by hand.
        catalog_path: the DuckDB file of views over the lake.
        tracking_uri: MLflow's runs and registry: a database, or a server's address.
        artifact_root: URI below which MLflow keeps files where `tracking_uri` is a database or our own server.
        prefect_home: Prefect's own folder.
    """

    home: Path
    store: Place
    lake_root: Place
    checkpoints: Place
    evaluations: Place
    comparisons: Place
    catalog_path: Path
    tracking_uri: str
    artifact_root: str
    prefect_home: Path

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the environment (see the module's text) and create the folders.

        Raises:
            ValueError: the home is a file, or cannot be created or written; or a store of its own cannot be, which is
                tried once per process.
        """
        home = Path(environ.get("DREAMSHARD_HOME") or ".dreamshard").expanduser().absolute()
        address, artifacts = environ.get("DREAMSHARD_STORE"), environ.get("DREAMSHARD_ARTIFACTS")
        store = place(address, "DREAMSHARD_STORE") if address else home
        settings = cls(
            home=home,
            store=store,
            lake_root=store / "lake",
            checkpoints=store / "checkpoints",
            evaluations=store / "evaluations",
            comparisons=store / "comparisons",
            catalog_path=home / "catalog.duckdb",
            tracking_uri=environ.get("MLFLOW_TRACKING_URI") or home_registry(home),
            artifact_root=_uri(artifacts) if artifacts else (store / "mlartifacts").as_uri(),
            prefect_home=home / "prefect",
        )
        settings._check_home()
        if address:
            check_writable(store, "DREAMSHARD_STORE")
        return settings

    def _check_home(self) -> None:
        shared = (self.home / "lake", self.home / "checkpoints") if self.store == self.home else ()
        try:
            for folder in (*shared, self.prefect_home):
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.home):
                pass  # the permission bits alone do not say whether a file system takes a file
        except OSError as error:
            raise ValueError(
                f"the home {self.home} cannot be written ({error.strerror or error}), so nothing could be kept; point "
                "DREAMSHARD_HOME or --home at a folder you may write"
            ) from error


def home_registry(home: Path) -> str:
    """The registry of a home that names none: a database of its own."""
    return f"sqlite:///{home / 'mlflow.db'}"


def _uri(address: str) -> str:
    """A URI as it is, a path as `file://`."""
    return address if "://" in address else Path(address).expanduser().absolute().as_uri()


def quiet_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Turn telemetry off; call it before mlflow or prefect is first imported. What the caller set is kept."""
    for name, value in QUIET.items():
        environ.setdefault(name, value)
