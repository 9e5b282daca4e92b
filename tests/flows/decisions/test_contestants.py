"""A champion that cannot be read."""

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from flows.decisions.contestants import champion_placer
from storage.mlflow_store import registry
from storage.store import open_store

GONE = MlflowException("no such model", error_code=RESOURCE_DOES_NOT_EXIST)


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return open_store()


def fail_to_load(monkeypatch: pytest.MonkeyPatch, cause: Exception | None) -> None:
    def unreadable(*_):
        raise ValueError("the files of version 3 cannot be read") from cause

    monkeypatch.setattr(registry, "load_placer", unreadable)


@pytest.mark.parametrize("cause", [None, FileNotFoundError("artifacts/placer"), GONE])
def test_a_champion_that_is_lost_or_of_another_format_counts_as_beaten_and_stops_nothing(store, monkeypatch, cause):
    fail_to_load(monkeypatch, cause)
    assert champion_placer(store, "3") == (None, "the files of version 3 cannot be read")
    assert champion_placer(store, None) == (None, "")


@pytest.mark.parametrize("cause", [MlflowException("no answer"), TimeoutError("the store")])
def test_a_registry_or_store_that_is_unavailable_proves_nothing_about_the_champion(store, monkeypatch, cause):
    fail_to_load(monkeypatch, cause)
    with pytest.raises(ValueError, match="cannot be read"):
        champion_placer(store, "3")
