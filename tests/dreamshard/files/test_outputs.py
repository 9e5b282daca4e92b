"""Files that a person names are written as what they are."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dreamshard.files import atomic, outputs

WRITE = "import sys; from pathlib import Path; from dreamshard.files import outputs; outputs.write(Path(sys.argv[1]), 'plan')"
IS_ROOT = os.geteuid() == 0


def device(folder: Path) -> Path:
    """A node like /dev/null, which a mistake may destroy."""
    node = folder / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes device nodes, and only where the file system has them")
    return node


def test_a_file_is_written_whole_or_not_at_all_and_keeps_its_permissions(tmp_path):
    plan = tmp_path / "plan.json"
    outputs.check(plan, "plan")
    outputs.write(plan, "old")
    plan.chmod(0o640)

    def write_half() -> None:
        with outputs.writing(plan) as file:
            file.write(b"half")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write_half()
    assert plan.read_text() == "old"
    before = plan.stat().st_ino
    outputs.write(plan, b"new")
    assert (plan.read_text(), plan.stat().st_mode & 0o777) == ("new", 0o640)
    assert plan.stat().st_ino != before, "written in place: a reader could see half of it"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_device_stays_a_device(tmp_path):
    node = device(tmp_path)
    outputs.check(node, "plan")
    outputs.write(node, "plan")
    link = tmp_path / "link"
    link.symlink_to(node)
    outputs.write(link, "plan")
    with pytest.raises(ValueError, match="is a device or a pipe"), atomic.writing(node) as file:
        file.write(b"plan")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "null"]


def test_a_named_pipe_carries_the_content_to_its_reader(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    outputs.check(pipe, "plan")
    outputs.write(pipe, "plan")
    reader.join(timeout=60)
    assert read == ["plan"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_leads_to_the_file_that_is_written(tmp_path, exists):
    (tmp_path / "there").mkdir()
    there, link = tmp_path / "there" / "plan.json", tmp_path / "plan.json"
    if exists:
        there.write_text("old")
    link.symlink_to("there/plan.json")
    outputs.check(link, "plan")
    outputs.write(link, "new")
    assert link.is_symlink()
    assert not there.is_symlink()
    assert there.read_text() == "new"
    with atomic.replacing(link) as temporary:
        temporary.write_text("newer")
    assert link.is_symlink()
    assert there.read_text() == "newer"


def test_a_file_with_two_names_keeps_both(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a long old plan")
    os.link(one, other)
    outputs.write(one, "new")
    assert other.read_text() == "new"


def test_a_folder_and_a_missing_folder_are_one_sentence_before_and_when_writing(tmp_path):
    missing, dangling = tmp_path / "none" / "plan.json", tmp_path / "dangling"
    dangling.symlink_to(missing)
    with pytest.raises(ValueError, match="is a folder, so the plan"):
        outputs.check(tmp_path, "plan")
    with pytest.raises(ValueError, match="cannot be written"):
        outputs.write(tmp_path, "plan")
    for path in (missing, dangling):
        with pytest.raises(ValueError, match=r"the folder .*none does not exist, so the curve .* give --curve another"):
            outputs.check(path, "curve", "--curve")


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_what_may_not_be_written_is_one_sentence_and_stays_as_it_is(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("kept")
    plan.chmod(0o444)
    for write in (lambda: outputs.check(plan, "plan"), lambda: outputs.write(plan, "new")):
        with pytest.raises(ValueError, match=r"plan.json (may not|cannot) be written"):
            write()
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ValueError, match="may not be written by this user"):
            outputs.check(tmp_path / "other.json", "plan")
        plan.chmod(0o644)
        outputs.check(plan, "plan")
        outputs.write(plan, "new")  # into the file: its folder takes no other
    finally:
        tmp_path.chmod(0o755)
    assert plan.read_text() == "new"


def test_standard_output_and_a_shells_pipes_are_written_in_order_and_stay(tmp_path):
    said = tmp_path / "said"
    shell = """
    { echo before; "$0" -c "$1" /dev/stdout; echo " after"; } > "$2"
    "$0" -c "$1" /dev/fd/7 7>&1 | cat
    "$0" -c "$1" >(cat) | cat
    "$0" -c "$1" /dev/stdout | head -c 2
    """
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, WRITE, said], capture_output=True, text=True, check=True
    )
    assert said.read_text() == "before\nplan after\n"
    assert done.stdout == "planplanpl"
    assert done.stderr == ""


def test_a_closed_pipe_is_one_sentence(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(ValueError, match="Broken pipe"):
        outputs.write(Path(f"/dev/fd/{writing}"), "plan")
    os.close(writing)
