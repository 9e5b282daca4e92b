"""Homes that several tests look at, and the command to do so."""

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
    """The same, for what a whole module looks at."""
    with pytest.MonkeyPatch.context() as patch:
        yield runner(patch)


@pytest.fixture(scope="module")
def finished(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the smoke recipe has been run; look at it, do not change it."""
    home = tmp_path_factory.mktemp("finished")
    done = shared_dreamshard("run", "--recipe", "smoke", "--testbed", "simulated", home=home)
    assert done.returncode == 0, done.sentence
    return home
