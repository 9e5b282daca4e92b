"""Run `dreamshard` in the process of the tests, which starts Prefect's temporary server once instead of per command."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Done:
    """What a command left behind: its exit code and its output."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def sentence(self) -> str:
        """The error that it ended with; empty if there was none."""
        said = [line for line in self.stderr.splitlines() if line.startswith("dreamshard: ")]
        return said[-1].removeprefix("dreamshard: ") if said else ""

    @property
    def notes(self) -> str:
        """What it said on stderr, on one line."""
        return " ".join(self.stderr.split())


Dreamshard = Callable[..., Done]


def dreamshard(*arguments: str | Path) -> Done:
    """Run a command on the home of the environment."""
    from flows.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return Done(ended.value.code or 0, out.getvalue(), err.getvalue())


def runner(patch: pytest.MonkeyPatch) -> Dreamshard:
    """A function that runs a command on a home; `patch` undoes its changes to the environment."""
    patch.setenv("PREFECT_HOME", os.environ["PREFECT_HOME"])
    patch.delenv("PREFECT_LOCAL_STORAGE_PATH", raising=False)

    def run(*arguments: str | Path, home: Path) -> Done:
        patch.setenv("DREAMSHARD_HOME", str(home))
        return dreamshard(*arguments)

    return run


def failed_with(done: Done, *words: str) -> None:
    """Assert exit code 1 and a single-sentence error that contains these words."""
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), (done.stdout, done.stderr)
    assert "--debug" not in (done.sentence or "--debug"), done.stderr
    for word in words:
        assert word in done.sentence, done.sentence


def files(folder: Path) -> dict[str, int]:
    """Every file below `folder` with its modification time."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
