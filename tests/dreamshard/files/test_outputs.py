"""Files that a person names are written as what they are."""

import os
import threading
from pathlib import Path

import pytest

from dreamshard.files import outputs


def test_a_file_is_replaced_as_a_whole_and_keeps_its_permissions(tmp_path: Path):
    plan = tmp_path / "plan.json"
    outputs.write(plan, "old")
    plan.chmod(0o640)
    before = plan.stat().st_ino
    outputs.write(plan, b"new")
    assert (plan.read_text(), plan.stat().st_mode & 0o777) == ("new", 0o640)
    assert plan.stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path):
    pipe, received = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    outputs.write(pipe, "plan")
    reader.join()
    assert received == ["plan"]
    assert pipe.is_fifo()


def test_a_folder_is_refused_before_any_work(tmp_path: Path):
    with pytest.raises(ValueError, match="is a folder, so the plan cannot be written"):
        outputs.check(tmp_path, "plan")
    with pytest.raises(ValueError, match=r"missing does not exist.*--html"):
        outputs.check(tmp_path / "missing" / "page.html", "page", "--html")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="a cannot be written"):
        outputs.write(tmp_path / "file" / "a", "plan")
