"""Fixtures of tests that run commands in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.commands import Done, dreamshard


@pytest.fixture(scope="module")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without versions for all tests of a file: making its MLflow database takes seconds, placing changes nothing."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def in_home(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """A function that runs a command on that home."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(new_home))
    return dreamshard


@pytest.fixture
def place_tables(in_home: Callable[..., Done], tmp_path: Path) -> Callable[..., tuple[Done, dict]]:
    """A function that runs `dreamshard place` for the text of a list and options, and gives the plan too."""

    def run(listed: str, *options: str | Path) -> tuple[Done, dict]:
        (tmp_path / "tables.csv").write_text(listed)
        done = in_home("place", tmp_path / "tables.csv", *options)
        return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}

    return run
