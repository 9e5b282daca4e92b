import errno
import os
import sqlite3
from pathlib import Path

import pytest

from dreamshard.files import full_disk, outputs


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("IO Error: Could not write file: No space left on device"),
        raised_from(ValueError("cannot be kept"), OSError(errno.ENOSPC, "full")),
    ],
)
def test_a_full_disk_is_one_sentence_whichever_library_reports_it(error: Exception):
    said = full_disk.sentence(error, [])
    assert said is not None
    assert said.startswith("a disk is full, so nothing more could be written")
    assert "run the same command again" in said
    assert "\n" not in said


def test_the_sentence_names_the_file_that_could_not_be_written():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/home/lake/a.parquet")
    said = full_disk.sentence(error, [])
    assert said is not None
    assert "the disk of /data/home/lake/a.parquet is full" in said


def test_a_disk_that_has_space_is_not_named(tmp_path: Path, monkeypatch):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(full_disk, "_free_bytes", lambda _: 2**40)
    said = full_disk.sentence(error, [tmp_path])
    assert said is not None
    assert said.startswith("a disk is full, so nothing more")
    assert str(tmp_path) not in said
    other = tmp_path / "other"
    monkeypatch.setattr(full_disk, "_free_bytes", lambda folder: 0 if folder == other else 2**40)
    assert f"the disk of {other} is full (0 KiB are free)" in str(full_disk.sentence(error, [tmp_path, other]))


def test_an_output_on_a_full_disk_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be written") as failed:
        outputs.write(Path("/dev/full"), "a plan")
    assert str(full_disk.sentence(failed.value, [tmp_path])).startswith(
        "the disk of /dev/full is full, so nothing more"
    )


def test_a_server_that_only_says_500_is_explained_by_the_space_that_is_left(tmp_path: Path, monkeypatch):
    error = RuntimeError("Server error '500 Internal Server Error'")
    assert full_disk.sentence(error, [tmp_path]) is None
    monkeypatch.setattr(full_disk, "_free_bytes", lambda folder: 12 * 1024 if folder == tmp_path else 2**40)
    said = full_disk.sentence(error, [Path("/"), tmp_path])
    assert said is not None
    assert f"the disk of {tmp_path} is full (12 KiB are free)" in said
    assert full_disk.sentence(ValueError("dim 3 is no multiple of 4"), [tmp_path]) is None, "says what was wrong itself"


def test_an_error_is_replaced_only_if_it_reports_a_full_disk():
    other, full = ValueError("7 devices"), sqlite3.OperationalError("database or disk is full")
    assert full_disk.explained(other) is other
    explained = full_disk.explained(full)
    assert isinstance(explained, full_disk.FullDiskError)
    assert full_disk.explained(explained) is explained
    assert full_disk.sentence(raised_from(RuntimeError("of a flow"), explained), []) == str(explained)


def test_nothing_starts_where_it_would_not_fit(tmp_path: Path):
    full_disk.check(tmp_path, 1, "a run")
    with pytest.raises(full_disk.FullDiskError, match=r"MiB free and a run needs .* so nothing was started"):
        full_disk.check(tmp_path, 2**60, "a run")
