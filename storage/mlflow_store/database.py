"""MLflow's own SQLite database, which one process creates while the others wait."""

from functools import cache
from pathlib import Path

from filelock import FileLock
from mlflow import MlflowClient

from storage.settings import LOCAL


@cache
def prepare(tracking_uri: str) -> None:
    """Let MLflow create the tables of a database on this host, once per process and by one process at a time."""
    if tracking_uri.startswith(LOCAL):
        path = Path(tracking_uri.removeprefix(LOCAL))
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            MlflowClient(tracking_uri).search_experiments(max_results=1)
