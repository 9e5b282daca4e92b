"""A folder for temporary files goes with its block, and what a killed process left goes with the next one's."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dreamshard.files.scratch import PREFIX, scratch_folder

KEEPS_ONE = (
    "from dreamshard.files.scratch import scratch_folder\n"
    "with scratch_folder() as folder: print(folder, flush=True); input()"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def an_hour_old(folder: Path) -> None:
    os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - 3600))


def test_what_a_killed_process_left_is_removed_by_the_next_and_a_running_ones_is_not(temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    killed, running = (subprocess.Popen([sys.executable, "-c", KEEPS_ONE], **pipes) for _ in range(2))
    folders = [Path(each.stdout.readline().strip()) for each in (killed, running)]
    (folders[0] / "answer.csv").write_text("1")
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


def test_a_folder_that_was_just_made_is_left_alone(temporary):
    new = temporary / f"{PREFIX}new"
    new.mkdir()
    with scratch_folder():
        assert new.exists()


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="needs systemd-tmpfiles")
def test_systemd_leaves_a_folder_alone_while_it_is_used_however_old_its_files(tmp_path, temporary):
    rule = tmp_path / "rule.conf"
    rule.write_text(f"d {temporary} - - - 1s\n")
    with scratch_folder() as used:
        unused = temporary / "unused"
        for folder in (used, unused):
            folder.mkdir(exist_ok=True)
            (folder / "model").touch()
        time.sleep(2)
        subprocess.run(["systemd-tmpfiles", "--clean", rule], check=True)
        assert (used / "model").exists()
        assert not unused.exists()
