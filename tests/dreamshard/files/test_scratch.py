"""A folder for temporary files goes with its block, and what a killed process left goes with the next one's."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dreamshard.files.scratch import PREFIX, scratch_folder

KEEPS_ONE = (
    "from dreamshard.files.scratch import scratch_folder\n"
    "with scratch_folder() as folder: print(folder, flush=True); input()"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def an_hour_old(folder: Path) -> None:
    os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - 3600))


def test_what_a_killed_process_left_is_removed_by_the_next_and_a_running_ones_is_not(temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    killed, running = (subprocess.Popen([sys.executable, "-c", KEEPS_ONE], **pipes) for _ in range(2))
    folders = [Path(each.stdout.readline().strip()).parent for each in (killed, running)]
    (folders[0] / "files" / "answer.csv").write_text("1")
    killed.kill()
    killed.wait()
    for folder in folders:
        an_hour_old(folder)
    with scratch_folder() as own:
        assert not any(own.iterdir())
        assert not folders[0].exists()
        assert folders[1].exists()
    running.communicate("\n")
    assert [each for each in temporary.iterdir() if each.name.startswith(PREFIX)] == []


def test_what_was_killed_before_it_had_its_lock_is_removed_too(temporary):
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    an_hour_old(left)
    with scratch_folder():
        assert not left.exists()


def test_a_folder_that_was_just_made_is_left_alone(temporary):
    new = temporary / f"{PREFIX}new"
    new.mkdir()
    (new / "lock").touch()
    with scratch_folder():
        assert new.exists()
