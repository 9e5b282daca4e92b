"""Which champion a candidate has to beat."""

import pytest
from prefect.logging import disable_run_logger

from flows import evaluate
from storage.mlflow_store import registry
from storage.run_records import trainings
from storage.store import open_store
from tests.helpers.versions import training_of, version_of


@pytest.mark.parametrize(("iteration", "training", "has_rival"), [(2, "t", False), (3, "t", True), (2, "u", True)])
def test_a_candidate_does_not_compete_with_the_champion_that_it_already_is(
    monkeypatch, tmp_path, iteration, training, has_rival
):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    trainings.write(open_store(), training, training_of())
    monkeypatch.setattr(registry, "champion", lambda *_: version_of("models:/m/1", training="t", iteration="2"))
    with disable_run_logger():
        assert (evaluate.champion_to_beat.fn(open_store(), training, iteration) is not None) is has_rival
