"""Measurements take turns on a host; what measures nothing waits for nobody."""

import fcntl
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dreamshard.host_lock import MEASURING_LOCK
from dreamshard.recipes import MeasureConfig
from flows import measuring, turns

WANTED = measuring.TestbedReference(
    name="cluster",
    kind="cluster",
    identity="a test",
    num_devices=2,
    batch_size=4,
    dataset="d",
    seed=0,
    measure=MeasureConfig(timeout_s=60.0),
)
SIMULATED = replace(WANTED, name="simulated:h100", kind="simulated")
TASK = SimpleNamespace(name="train-000", tables=(), num_devices=2)


def is_locked(lock: Path) -> bool:
    """Whether somebody else would have to wait."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("wanted", "waits"), [(WANTED, True), (SIMULATED, False)])
def test_a_measurement_is_taken_alone_and_a_simulated_one_waits_for_nobody(tmp_path, monkeypatch, wanted, waits):
    lock, seen = tmp_path / "lock", []
    monkeypatch.setenv(MEASURING_LOCK, str(lock))

    class Bench:
        def measure(self, task, placement):
            seen.append(is_locked(lock))
            raise ZeroDivisionError

    monkeypatch.setattr(measuring, "borrowed", lambda wanted: nullcontext(Bench()))
    with pytest.raises(ZeroDivisionError):
        measuring.measure(wanted, TASK, None)
    assert seen == [waits]
    assert not is_locked(lock), "a measurement that fails gives the lock back"


def test_a_step_that_measures_holds_the_limit_of_its_host_and_a_simulated_one_none(monkeypatch):
    held = []

    @contextmanager
    def shared(limit):
        held.append(limit)
        yield

    monkeypatch.setattr(turns, "shared", shared)
    monkeypatch.setenv(turns.HOST, "gpu-7")
    for wanted in (WANTED, SIMULATED):
        with measuring.turn(wanted):
            pass
    assert held == ["dreamshard-measures-gpu-7"]
