"""Which champion a candidate has to beat; what a rival measures is on disk at once, and is not measured again."""

from types import SimpleNamespace

import pytest
import torch
from prefect.logging import disable_run_logger

from dreamshard.placement import Placement
from dreamshard.recipes import MeasureConfig
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from flows import evaluate
from flows.decisions.rivals import RivalInputs
from storage.mlflow_store import registry
from storage.run_records import training_effort
from storage.run_records.trainings import TestbedReference
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

    monkeypatch.setattr(evaluate, "measure", measure)
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
        with evaluate.learning(store, testbed, "tasks", RivalInputs(measured=3), learns=True) as ready:
            costs.extend(ready.measure(task, placement).overall_ms for placement in placements[:2])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_third()
    with evaluate.learning(store, testbed, "tasks", RivalInputs(measured=3), learns=True) as ready:
        again = [ready.measure(task, placement).overall_ms for placement in placements]
    assert again[:2] == pytest.approx(costs)
    assert len(measured) == 3
    with evaluate.learning(store, testbed, "tasks", RivalInputs(measured=4), learns=True) as ready:
        ready.measure(task, placements[0])
    assert len(measured) == 4
    assert len(store.lake.read_cost_samples()) == 4


@pytest.mark.parametrize(("iteration", "training", "rival"), [(2, "t", None), (3, "t", "1"), (2, "u", "1")])
def test_a_candidate_does_not_compete_with_the_champion_that_it_already_is(
    monkeypatch, tmp_path, iteration, training, rival
):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    monkeypatch.setattr(training_effort, "read_origin", lambda *_: SimpleNamespace(topology="a test"))
    monkeypatch.setattr(registry, "champion", lambda *_: "1")
    monkeypatch.setattr(registry, "version_tags", lambda *_: {"training": "t", "iteration": "2"})
    with disable_run_logger():
        assert evaluate.champion_to_beat.fn(open_store(), training, iteration) == rival
