"""Where everything is kept: one home folder, or addresses in environment variables.

Reading settings touches no disk and no network; `store.open_store` creates the folders and checks them.

    DREAMSHARD_HOME       this machine's folder (default ./.dreamshard): databases, logs, locks, copies of lookups
    DREAMSHARD_STORE      files that a team shares: lake, checkpoints, reports, MLflow's files. A folder, or any address
                          that fsspec knows (s3://bucket/prefix, gs://..., abfs://...); default: the home
    DREAMSHARD_ARTIFACTS  another folder or address for MLflow's files
    MLFLOW_TRACKING_URI   MLflow's database or server; default: a database in the home

The libraries read credentials and endpoints: for S3 `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_PROFILE`,
`AWS_DEFAULT_REGION` or the machine's role; for a server other than Amazon's `AWS_ENDPOINT_URL_S3`, which all of them
read (or `FSSPEC_S3_ENDPOINT_URL` for the store and `MLFLOW_S3_ENDPOINT_URL` for MLflow's files). An experiment of MLflow
keeps the address that it was created with: change the store before the first run, or use another database.
"""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storage.filesystem import AnyPath, parse_address

QUIET: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""No telemetry, no log line per table of a new database, no progress bars for small files, and two processes of MLflow's
server instead of fifteen."""

RESULTS = "results"
"""The home's folder of results of flow runs."""

LOCAL = "sqlite:///"
"""How the address of a database on this host begins."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Addresses of everything that is kept.

    Attributes:
        home: this machine's folder, absolute.
        store_root: folder shared by a team; the home unless `DREAMSHARD_STORE` names another.
        tracking_uri: MLflow's runs and registry: a database, or a server's address.
        artifact_root: URI below which MLflow keeps files where `tracking_uri` is a database or our own server.
    """

    home: Path
    store_root: AnyPath
    tracking_uri: str
    artifact_root: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the environment variables that the module's text lists."""
        home = Path(environ.get("DREAMSHARD_HOME") or ".dreamshard").expanduser().absolute()
        address, artifacts = environ.get("DREAMSHARD_STORE"), environ.get("DREAMSHARD_ARTIFACTS")
        store_root = parse_address(address, "DREAMSHARD_STORE") if address else home
        return cls(
            home=home,
            store_root=store_root,
            tracking_uri=environ.get("MLFLOW_TRACKING_URI") or home_registry(home),
            artifact_root=_uri(artifacts) if artifacts else (store_root / "mlartifacts").as_uri(),
        )

    @property
    def lake_root(self) -> AnyPath:
        """The folder of the Parquet datasets."""
        return self.store_root / "lake"

    @property
    def catalog_path(self) -> Path:
        """The DuckDB file of views over the lake."""
        return self.home / "catalog.duckdb"


def home_registry(home: Path) -> str:
    """The default registry: a database in the home."""
    return f"{LOCAL}{home / 'mlflow.db'}"


def _uri(address: str) -> str:
    """A URI unchanged, a path as `file://`."""
    return address if "://" in address else Path(address).expanduser().absolute().as_uri()


def quiet_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Turn telemetry off, before mlflow or prefect is first imported; variables that are set stay."""
    for name, value in QUIET.items():
        environ.setdefault(name, value)
