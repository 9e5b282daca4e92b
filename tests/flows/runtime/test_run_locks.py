import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import Capacity
from flows import promote
from flows.forms.options import PromoteOptions
from flows.runtime import run_locks, testbed_pool
from flows.runtime.launched_ranks import for_testbed
from storage.store import Store, open_store
from tests.helpers.locks import is_free
from tests.helpers.tables import tables_of
from tests.helpers.versions import training_of

CLUSTER = training_of("cluster", "a test").testbed
SIMULATED = replace(CLUSTER, name="simulated:h100", kind="simulated")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setenv(run_locks.MEASURING_LOCK, str(tmp_path / "lock"))
    return open_store()


@pytest.mark.parametrize(("wanted", "are_others_free"), [(CLUSTER, False), (SIMULATED, True)])
def test_measurements_take_turns_and_simulated_ones_do_not_wait(store, tmp_path, monkeypatch, wanted, are_others_free):
    class Bench:
        def measure(self, task, placement):
            assert is_free(tmp_path / "lock") is are_others_free
            raise ZeroDivisionError

        def capacity(self):
            return Capacity(kind="cpu")

        def close(self):
            pass

    monkeypatch.setattr(testbed_pool, "open_reference", lambda *_: Bench())
    with pytest.raises(ZeroDivisionError):
        testbed_pool.measure(store, wanted, PlacementTask(tables_of([10, 10, 10]), 2, 10**6), None)
    assert is_free(tmp_path / "lock"), "a measurement that fails gives the lock back"


def test_a_promotion_by_hand_waits_for_one_that_is_under_way(store, monkeypatch):
    begun = threading.Event()
    change = {"version": "2", "former": None, "model": "ads", "topology": "h100-x8"}
    monkeypatch.setattr(promote.registry, "make_champion", lambda *_, **__: begun.set() or change)
    monkeypatch.setattr(promote.registry, "write_versions", lambda *_: None)
    by_hand = threading.Thread(target=promote.take_into_use, args=(store, PromoteOptions(version="2")), daemon=True)
    with run_locks.registry_lock(store):
        by_hand.start()
        assert not begun.wait(0.5)
    assert begun.wait(10)
    by_hand.join()


def test_a_plain_command_in_every_process_of_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError):
        for_testbed("cluster")
    assert for_testbed("simulated") is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert for_testbed("cluster") is None
