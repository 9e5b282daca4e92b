"""Who takes part in an evaluation, and a champion that cannot be read."""

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from dreamshard.baselines import GreedyPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import accelerator
from flows.decisions.contestants import Contestants, champion_placer, with_torchrec_planner
from storage.mlflow_store import registry
from storage.run_records.report_store import CANDIDATE
from storage.store import open_store
from tests.helpers.tables import roomy_task, tables_of_dims

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


def test_torchrecs_planner_meets_every_candidate_before_the_candidate_is_measured():
    candidate = GreedyPlacer("size_greedy")
    field = Contestants(
        placers={"dim_greedy": GreedyPlacer("dim_greedy"), CANDIDATE: candidate},
        predictors={CANDIDATE: candidate},
        candidate=CANDIDATE,
        versions={},
    )
    tasks = [roomy_task(tables_of_dims([8, 16, 32]), 2)]
    spec = accelerator("a100")
    contestants = with_torchrec_planner(field, tasks, spec)
    assert list(contestants.placers) == ["dim_greedy", "torchrec_planner", CANDIDATE]
    planner = contestants.placers["torchrec_planner"]
    assert (planner.network_bytes_per_s, planner.devices_per_host) == (spec.network_bytes_per_s, spec.devices_per_node)
    versions = Contestants(
        placers={"version 1": candidate}, predictors={"version 1": candidate}, versions={"version 1": "1"}
    )
    assert with_torchrec_planner(versions, tasks, spec) is versions
    tight = [PlacementTask(tables_of_dims([8, 8, 8], rows=100), 2, 4900)]
    assert "torchrec_planner" not in with_torchrec_planner(field, tight, None).placers
