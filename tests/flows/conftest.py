"""Homes that several tests read, and the command line."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from prefect.logging import disable_run_logger

from storage.store import Store, open_store
from tests.flows.commands import Dreamshard, runner
from tests.helpers.tables import pool_of


@pytest.fixture
def dreamshard(monkeypatch: pytest.MonkeyPatch) -> Dreamshard:
    """Run a command in this process; the environment is as before afterwards."""
    return runner(monkeypatch)


@pytest.fixture(scope="module")
def shared_dreamshard() -> Iterator[Dreamshard]:
    """Run a command in this process, for module-wide fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        yield runner(patch)


@pytest.fixture(scope="module")
def in_json(shared_dreamshard: Dreamshard) -> Callable[..., Any]:
    """A function that returns what a command says as JSON."""

    def run(*words: str, home: Path) -> Any:
        done = shared_dreamshard(*words, "--json", home=home)
        assert done.returncode == 0, done.sentence
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A home in which the smoke recipe has run, once for all workers of pytest; read-only."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    home, finished = shared / "trained", shared / "trained.finished"
    with FileLock(shared / "trained.lock"), pytest.MonkeyPatch.context() as patch:
        if not finished.exists():
            home.mkdir(exist_ok=True)
            shutil.copy(empty_database, home)
            done = runner(patch)("run", "--recipe", "smoke", "--testbed", "simulated", home=home)
            assert done.returncode == 0, done.sentence
            finished.touch()
    return home


def copy_home(home: Path, copy: Path) -> Path:
    """Copy a home whose commands have ended; MLflow's addresses of files name the copy."""
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("mlflow.db*"))
    with closing(sqlite3.connect(home / "mlflow.db")) as source, closing(sqlite3.connect(copy / "mlflow.db")) as target:
        target.executescript("\n".join(source.iterdump()).replace(str(home), str(copy)))
    return copy


@pytest.fixture(scope="module")
def finished(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trained home for the tests of a file, which may change it."""
    return copy_home(trained, tmp_path_factory.mktemp("copy") / "home")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A home whose lake has the dataset of `pool_of(24)`; tasks are called outside of runs."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    opened = open_store()
    opened.lake.write_dataset(pool_of(24), "by hand")
    with disable_run_logger():
        yield opened
