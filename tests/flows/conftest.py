"""Homes that several tests read, and the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.commands import Dreamshard, runner


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
def finished(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the smoke recipe has run; read-only."""
    home = tmp_path_factory.mktemp("finished")
    done = shared_dreamshard("run", "--recipe", "smoke", "--testbed", "simulated", home=home)
    assert done.returncode == 0, done.sentence
    return home
