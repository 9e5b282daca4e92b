"""Which champion a candidate has to beat, and when an evaluation is measured again."""

from types import SimpleNamespace

import pytest
from prefect.logging import disable_run_logger

from dreamshard.recipes import MeasureConfig
from flows import evaluate
from flows.runtime.testbed_pool import TestbedReference
from storage.mlflow_store import registry
from storage.run_records import training_effort
from storage.store import Store, open_store

TESTBED = TestbedReference(
    name="simulated",
    kind="simulated",
    identity="a test",
    links="a test",
    num_devices=2,
    batch_size=4,
    dataset="d",
    seed=0,
    measure=MeasureConfig(),
)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Store:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


@pytest.mark.parametrize(("iteration", "training", "rival"), [(2, "t", None), (3, "t", "1"), (2, "u", "1")])
def test_a_candidate_does_not_compete_with_the_champion_that_it_already_is(
    store, monkeypatch, iteration, training, rival
):
    monkeypatch.setattr(training_effort, "read_origin", lambda *_: SimpleNamespace(topology="a test"))
    monkeypatch.setattr(registry, "champion", lambda *_: "1")
    monkeypatch.setattr(registry, "version_tags", lambda *_: {"training": "t", "iteration": "2"})
    with disable_run_logger():
        assert evaluate.champion_to_beat.fn(store, training, iteration) == rival
