"""Which report belongs to what is promoted, and what a champion that cannot be read means."""

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from flows.reports import evaluations, tracking
from storage.mlflow_store import registry


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return tmp_path


def test_a_report_of_another_iteration_is_refused():
    evaluations.require_of({"training": "t", "iteration": 2}, 2)
    with pytest.raises(ValueError, match=r"stands at iteration 3, .* is of iteration 2, .* evaluate` again"):
        evaluations.require_of({"training": "t", "iteration": 2}, 3)
    with pytest.raises(ValueError, match="evaluate` again"):
        evaluations.require_of({"training": "t"}, 3)


def test_a_report_asked_for_again_is_the_newest(home):
    for key in ("a", "b"):
        evaluations.save({"key": key, "training": "t", "iteration": 1})
    assert evaluations.newest("t")["key"] == "b"
    evaluations.use("a")
    assert evaluations.newest("t")["key"] == "a"
    evaluations.path("a").unlink()
    with pytest.raises(ValueError, match="there is no evaluation a"):
        evaluations.newest("t")
    with pytest.raises(ValueError, match="training u has not been evaluated"):
        evaluations.newest("u")


GONE = MlflowException("no such model", error_code=RESOURCE_DOES_NOT_EXIST)


@pytest.mark.parametrize("cause", [None, FileNotFoundError("artifacts/placer"), GONE])
def test_a_champion_that_is_lost_or_of_another_format_counts_as_beaten_and_stops_nothing(monkeypatch, cause):
    def unreadable(_):
        raise ValueError("the files of version 3 cannot be read") from cause

    monkeypatch.setattr(registry, "load_placer", unreadable)
    assert evaluations.champion_placer("3") == (None, "the files of version 3 cannot be read")
    assert evaluations.champion_placer(None) == (None, "")


@pytest.mark.parametrize("cause", [MlflowException("no answer"), TimeoutError("the store")])
def test_a_registry_or_store_that_is_away_says_nothing_of_the_champion(monkeypatch, cause):
    def away(_):
        raise ValueError("the files of version 3 cannot be read") from cause

    monkeypatch.setattr(registry, "load_placer", away)
    with pytest.raises(ValueError, match="cannot be read"):
        evaluations.champion_placer("3")


def test_a_version_comes_from_one_iteration_of_a_training(home, monkeypatch):
    monkeypatch.setattr(registry, "version_tags", lambda *_: {"training": "t", "iteration": "2"})
    assert tracking.came_from("1", "t", 2)
    assert not tracking.came_from("1", "t", 3)
    assert not tracking.came_from("1", "u", 2)
