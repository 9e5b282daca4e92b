"""The reference tasks: a failure costs a version only that figure, and figures are of the batch that was measured."""

import pytest
from prefect.logging import disable_run_logger

from dreamshard.recipes import MeasureConfig
from dreamshard.testbeds.base import MeasurementError
from flows import reference
from storage.mlflow_store import registration, registry, runs, versions
from storage.run_records.reference_sets import ReferenceSet
from storage.store import Store, open_store
from storage.version_names import in_words
from tests.flows.test_promote import MODEL, row
from tests.helpers.trained import learnt_placer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Store:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


@pytest.fixture
def version(store: Store) -> str:
    """The only registered version."""
    with runs.chain(store.settings, "retrain") as run:
        tags = {"training": "t", "iteration": 1}
        return registration.register_placer(store.settings, learnt_placer(), run, MODEL, tags=tags)


def test_a_version_that_cannot_be_measured_says_so_until_it_can(store: Store, version: str, monkeypatch):
    def hangs(*_given, **_more):
        raise MeasurementError("rank 3 hung")

    monkeypatch.setattr(reference, "_score", hangs)
    with disable_run_logger():
        sentence = reference.score_version(store, registry.find(store.settings, version).run, version, MODEL)
    assert sentence.startswith(f"{in_words(version)} was not measured on reference tasks (rank 3 hung), so it has no ")
    assert versions.version(store.settings, version)["reference_failure"] == sentence
    used = ReferenceSet(
        topology="here", number=1, dataset="d", tasks="t", batch_size=2048, measure=MeasureConfig(), asked_by="r"
    )
    reference.log_figures(store, version, used, "e", {"reference_cost_ms": 2.0})
    (measured,) = versions.versions(store.settings)
    assert (measured["reference_failure"], measured["reference_cost_ms"]) == (None, 2.0)
    assert (measured["reference_set"], measured["reference_batch_size"]) == (used.key, 2048)


def test_the_error_is_left_out_where_the_version_predicts_costs_of_another_batch():
    costs = {reference.VERSION: 1.0, reference.RULE: 2.0}
    rows = [row(f"reference-1-00{t}", placer, ms) for t in range(2) for placer, ms in costs.items()]
    figures = reference.reference_figures(rows)
    assert figures == {
        "reference_cost_ms": 1.0,
        "reference_cost_ratio": 0.5,
        "reference_rule_ms": 2.0,
        "reference_predicted_mape": 0.0,
    }
    del figures["reference_predicted_mape"]
    assert reference.reference_figures(rows, is_predicted=False) == figures
