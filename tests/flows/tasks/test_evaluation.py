"""Which champion a candidate has to beat, and when an evaluation is measured again."""

from types import SimpleNamespace

import pytest
from prefect.logging import disable_run_logger

from dreamshard.recipes import EvaluationConfig, MeasureConfig
from flows.runtime.content_keys import content_key
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks import evaluation
from storage.mlflow_store import champions, registry
from storage.run_records import report_store, training_effort
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
    monkeypatch.setattr(champions, "champion_of", lambda *_: "1")
    monkeypatch.setattr(registry, "version_tags", lambda *_: {"training": "t", "iteration": "2"})
    with disable_run_logger():
        assert evaluation.champion_to_beat.fn(store, training, iteration) == rival


def test_a_report_that_exists_is_reused(store):
    arguments = ("training", 1, "d", "t", EvaluationConfig(), TESTBED, None)
    key = content_key(*arguments)
    report_store.path(store.evaluations, key).parent.mkdir()
    report_store.path(store.evaluations, key).write_text("{}")
    assert evaluation.evaluate_placers.fn(store, *arguments) == key
    with pytest.raises(ValueError, match="there is no checkpoint"):
        evaluation.evaluate_placers.fn(store, "another", *arguments[1:])
