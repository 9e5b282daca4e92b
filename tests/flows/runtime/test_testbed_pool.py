import pytest

from dreamshard.tables import Placement
from dreamshard.testbeds import MeasurementError
from flows.runtime import run_locks, testbed_pool
from storage.store import open_store
from tests.helpers.locks import is_free
from tests.helpers.tables import tables_of, task_of
from tests.helpers.versions import training_of

TASK = task_of([1, 1], 2, 2)


def test_a_shard_that_others_crowd_out_of_a_gpu_is_an_error(monkeypatch, tmp_path):
    lock = tmp_path / "measuring.lock"
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setenv(run_locks.MEASURING_LOCK, str(lock))
    store = open_store()
    dataset = store.lake.write_dataset(tables_of([1, 1]), "by hand")
    made = training_of(testbed="tests.flows.faulty_testbeds:on_gpu", hardware="abacus", dataset=dataset, num_devices=2)
    with testbed_pool.shared_testbeds():
        with testbed_pool.freeing_gpus(), testbed_pool.shared_testbed(store, made.testbed):
            assert not is_free(lock), "its memory would crowd out another flow's"
        assert is_free(lock)
        with pytest.raises(MeasurementError):
            testbed_pool.measure(store, made.testbed, TASK, Placement.whole([0, 1], 2))
    assert is_free(lock)
