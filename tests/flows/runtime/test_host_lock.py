"""A lock on a file, seen from other processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.runtime import run_locks as locks

TRY = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waits")
else:
    print("measures")
"""


def other(lock: Path) -> str:
    """What another process could do at the same time."""
    return subprocess.run([sys.executable, "-c", TRY, lock], capture_output=True, text=True, check=True).stdout.strip()


def test_another_process_waits_while_one_measures_and_goes_on_afterwards(tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    monkeypatch.setenv(locks.MEASURING_LOCK, str(lock))
    with locks.measuring():
        assert other(lock) == "waits"
    assert other(lock) == "measures"


@pytest.mark.processes
def test_a_process_that_was_killed_gives_the_lock_back(tmp_path):
    lock = tmp_path / "lock"
    hold = "import sys, time; from pathlib import Path; from flows.runtime.run_locks import locked\n"
    hold += "with locked(Path(sys.argv[1]), ''):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert other(lock) == "waits"
        holder.kill()
    assert other(lock) == "measures"


def test_a_lock_that_cannot_be_made_says_which_setting_to_change(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(locks.MEASURING_LOCK, str(tmp_path / "file" / "lock"))
    with pytest.raises(ValueError, match=r"file/lock cannot be made .*DREAMSHARD_MEASURING_LOCK"), locks.measuring():
        pass
