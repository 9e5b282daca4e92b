"""Promotions and runs of one training take turns in one home."""

import threading

import pytest
from prefect.logging import disable_run_logger

from flows import promote
from flows.runtime import run_locks
from storage.store import Store, open_store


@pytest.fixture
def store(monkeypatch, tmp_path) -> Store:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


def test_a_promotion_by_hand_waits_for_one_that_is_under_way(store, monkeypatch):
    begun = threading.Event()

    def make_champion(_settings, version, reason, **_):
        begun.set()
        return {"version": version, "former": "1", "topology": "here"}

    monkeypatch.setattr(promote.registry, "make_champion", make_champion)
    by_hand = threading.Thread(target=promote.make_champion.fn, args=(store, "2", ""))
    with disable_run_logger():
        with run_locks.registry_lock(store):
            by_hand.start()
            assert not begun.wait(0.5)
        assert begun.wait(10)
        by_hand.join()


def test_a_second_run_of_a_training_in_one_home_waits_and_another_training_does_not(store):
    begun = {key: threading.Event() for key in ("same", "other")}

    def run(key):
        with run_locks.training_lock(store, key):
            begun[key].set()

    with run_locks.training_lock(store, "same"):
        runs = [threading.Thread(target=run, args=(key,)) for key in begun]
        for each in runs:
            each.start()
        assert begun["other"].wait(10)
        assert not begun["same"].wait(0.3)
    assert begun["same"].wait(10)
    for each in runs:
        each.join()
