"""Run `dreamshard` in the process of the tests, which starts Prefect's temporary server once instead of per command."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner


class Done:
    """What a command left behind: its exit code, its output, and the sentence it would have shown."""

    def __init__(self, result):
        from flows.cli.app import sentence

        self.returncode, self.stdout, self.stderr = result.exit_code, result.stdout, result.stderr
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        self.sentence = sentence(result.exception) if unexpected else ""


Dreamshard = Callable[..., Done]


def runner(patch: pytest.MonkeyPatch) -> Dreamshard:
    """A function that runs a command on a home; `patch` undoes its changes to the environment."""
    from flows.cli.app import app

    patch.setenv("PREFECT_HOME", os.environ["PREFECT_HOME"])
    patch.delenv("PREFECT_LOCAL_STORAGE_PATH", raising=False)

    def run(*arguments: str, home: Path) -> Done:
        patch.setenv("DREAMSHARD_HOME", str(home))
        return Done(CliRunner().invoke(app, list(arguments)))

    return run


def failed_with(done: Done, *words: str) -> None:
    """Assert exit code 1 and a single-sentence error that contains these words."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.sentence, done.stderr
    assert "--debug" not in done.sentence, done.sentence
    assert "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in done.sentence, done.sentence


def files(folder: Path) -> dict[str, int]:
    """Every file below `folder` with its modification time."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
