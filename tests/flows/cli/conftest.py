"""Fixtures of tests that run commands in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.commands import Done, dreamshard


@pytest.fixture(scope="module")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without versions for all tests of a file: making its MLflow database takes seconds, placing changes nothing."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def place_tables(new_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:
    """A function that runs `dreamshard place` for the text of a list and options."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(new_home))

    def run(listed: str, *options: str) -> Done:
        (tmp_path / "tables.csv").write_text(listed)
        return dreamshard("place", tmp_path / "tables.csv", *options)

    return run
