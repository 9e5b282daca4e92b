"""Measurements take turns on a host; what measures nothing waits for nobody."""

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from dreamshard.recipes import MeasureConfig
from dreamshard.tasks import PlacementTask
from flows.runtime import testbed_pool
from flows.runtime.run_locks import MEASURING_LOCK
from storage.store import open_store
from tests.helpers.tables import tables_of

WANTED = testbed_pool.TestbedReference(
    name="cluster",
    kind="cluster",
    identity="a test",
    links="a test",
    num_devices=2,
    batch_size=4,
    dataset="d",
    seed=0,
    measure=MeasureConfig(timeout_s=60.0),
)
SIMULATED = replace(WANTED, name="simulated:h100", kind="simulated")


def make_task() -> PlacementTask:
    """Three tables, t0 to t2, on two devices."""
    return PlacementTask(tables_of([10, 10, 10]), 2, 10**6)


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
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))

    class Bench:
        def measure(self, task, placement):
            seen.append(is_locked(lock))
            raise ZeroDivisionError

        def close(self):
            pass

    monkeypatch.setattr(testbed_pool, "open_reference", lambda *_: Bench())
    with pytest.raises(ZeroDivisionError):
        testbed_pool.measure(open_store(), wanted, make_task(), None)
    assert seen == [waits]
    assert not is_locked(lock), "a measurement that fails gives the lock back"


@pytest.mark.parametrize(("wanted", "redrawn"), [(WANTED, False), (SIMULATED, True)])
def test_only_a_computed_cost_has_another_error_in_each_round(wanted, redrawn):
    assert (testbed_pool.in_round(wanted, 2) != wanted) is redrawn
    assert testbed_pool.in_round(wanted, 0) == wanted
