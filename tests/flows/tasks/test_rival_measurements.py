"""What a rival measures is on disk at once, and is not measured again."""

import pytest
import torch

from dreamshard.placement import Placement
from dreamshard.recipes import MeasureConfig
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks import rival_measurements
from flows.tasks.rival_measurements import measuring_for_rnn
from storage.store import open_store
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A home with eight tables, a testbed on them, and the list of what is measured."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    store, pool, measured = open_store(), pool_of(8), []
    dataset = dataset_version(pool)
    store.lake.write_dataset(pool, dataset, "by hand")

    def measure(_store, _testbed, task, placement):
        measured.append(placement)
        return simulated().measure(task, placement)

    monkeypatch.setattr(rival_measurements, "measure", measure)
    testbed = TestbedReference(
        name="simulated",
        kind="simulated",
        identity="a test",
        links="a test",
        num_devices=2,
        batch_size=4,
        dataset=dataset,
        seed=0,
        measure=MeasureConfig(),
    )
    return store, testbed, PlacementTask(pool, 2, 2**40), measured


def test_an_interrupted_rival_measures_only_what_is_missing_and_another_budget_is_another_run(bench):
    store, testbed, task, measured = bench
    placements = [Placement.whole(torch.tensor([0] * t + [1] * (8 - t)), 2) for t in range(3)]
    costs = []

    def fail_at_the_third() -> None:
        with measuring_for_rnn(store, testbed, "tasks", 3) as measure:
            costs.extend(measure(task, placement).overall_ms for placement in placements[:2])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_third()
    with measuring_for_rnn(store, testbed, "tasks", 3) as measure:
        again = [measure(task, placement).overall_ms for placement in placements]
    assert again[:2] == pytest.approx(costs)
    assert len(measured) == 3
    with measuring_for_rnn(store, testbed, "tasks", 4) as measure:
        measure(task, placements[0])
    assert len(measured) == 4
    assert len(store.lake.read_cost_samples()) == 4
