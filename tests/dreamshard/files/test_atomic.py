import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dreamshard.files import atomic


def test_a_file_appears_complete_in_its_folder(tmp_path: Path):
    target = tmp_path / "new" / "a.json"
    with atomic.replacing(target) as temporary:
        temporary.write_text("content")
    with suppress(KeyError), atomic.replacing(target) as temporary:
        temporary.write_text("half")
        raise KeyError  # a write that fails leaves the old file alone
    assert target.read_text() == "content"
    assert [path.name for path in target.parent.iterdir()] == ["a.json"]


@pytest.mark.processes
def test_a_killed_writer_leaves_only_a_temporary_file(tmp_path: Path):
    code = """
import sys
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
