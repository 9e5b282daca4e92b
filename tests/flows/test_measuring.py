"""Measurements of one home take turns on a host."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dreamshard.recipes import MeasureConfig
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

WANTED = measuring.TestbedReference(
    name="simulated",
    kind="simulated",
    identity="a test",
    num_devices=2,
    batch_size=4,
    dataset="d",
    seed=0,
    measure=MeasureConfig(timeout_s=60.0),
)
TASK = SimpleNamespace(name="train-000", tables=(), num_devices=2)


def other(home: Path) -> str:
    """What another process could do at the same time."""
    return subprocess.run(
        [sys.executable, "-c", OTHER, str(home)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_another_process_waits_while_one_measures_and_goes_on_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    with measuring.alone():
        assert other(tmp_path) == "waits"
    assert other(tmp_path) == "measures"


def test_a_measurement_is_taken_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    seen = []

    class Bench:
        def measure(self, task, placement):
            seen.append(other(tmp_path))
            raise ZeroDivisionError

    @contextmanager
    def borrowed(wanted):
        yield Bench()

    monkeypatch.setattr(measuring, "borrowed", borrowed)
    with pytest.raises(ZeroDivisionError):
        measuring.measure(WANTED, TASK, None)
    assert seen == ["waits"]
    assert other(tmp_path) == "measures", "a measurement that fails gives the lock back"
