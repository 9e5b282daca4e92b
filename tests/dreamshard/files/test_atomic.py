"""Files and folders that appear whole or not at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dreamshard.files import atomic


class Interrupted(Exception):  # noqa: N818
    pass


def test_a_file_appears_with_its_content_and_its_folder_and_nothing_else(tmp_path: Path):
    with atomic.replacing(tmp_path / "new" / "a.json") as temporary:
        temporary.write_text("content")
    assert (tmp_path / "new" / "a.json").read_text() == "content"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path):
    target = tmp_path / "a"
    target.write_text("old")

    def write_half() -> None:
        with atomic.replacing(target) as temporary:
            temporary.write_text("half")
            raise Interrupted

    with pytest.raises(Interrupted):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert target.read_text() == "old"


@pytest.mark.processes
def test_a_killed_writer_leaves_only_a_temporary_file(tmp_path: Path):
    code = """
import sys
import threading
from pathlib import Path
from dreamshard.files import atomic
with atomic.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("wrote", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "wrote\n"
        os.kill(writer.pid, signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f".a.{writer.pid}.")
    assert left.suffix == ".tmp"


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path):
    target = tmp_path / "model"
    for names in (("a", "b"), ("c",)):
        with atomic.replacing_folder(target) as temporary:
            for name in names:
                (temporary / name).write_text(name)
    assert [path.name for path in target.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_old_folder_is_read_where_a_writer_was_killed_before_the_new_one_had_its_name(tmp_path: Path):
    target, moved = tmp_path / "model", tmp_path / "model.4711.replaced.tmp"
    assert atomic.complete_folder(target) == target
    moved.mkdir()
    assert atomic.complete_folder(target) == moved
    target.mkdir()
    assert atomic.complete_folder(target) == target
