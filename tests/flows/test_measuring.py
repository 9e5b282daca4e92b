"""Measurements of one home take turns on a host."""

import subprocess
import sys

from flows import measuring

OTHER = """
import fcntl, pathlib, sys
(lock,) = pathlib.Path(sys.argv[1]).glob("measuring.*.lock")
try:
    fcntl.flock(lock.open("a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waits")
else:
    print("measures")
"""


def test_another_process_waits_while_one_measures_and_goes_on_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", OTHER, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout.strip()

    with measuring.alone():
        assert other() == "waits"
    assert other() == "measures"
