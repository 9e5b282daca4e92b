"""Copies of a home, so that tests of different files share one training."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def copy_home(home: Path, copy: Path) -> Path:
    """Copy a home whose commands have ended; MLflow's addresses of files name the copy."""
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("mlflow.db*"))
    with closing(sqlite3.connect(home / "mlflow.db")) as source, closing(sqlite3.connect(copy / "mlflow.db")) as target:
        target.executescript("\n".join(source.iterdump()).replace(str(home), str(copy)))
    return copy
