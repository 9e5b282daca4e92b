import pytest

from dreamshard.costs import MeasuredOn
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer, TrainingConfig
from storage.mlflow_store import registration, registry, runs
from storage.mlflow_store.registry import set_alias
from storage.run_records.trainings import Warm
from storage.store import Store
from tests.helpers.lake import query
from tests.helpers.samples import four_tables, make_evaluation, make_sample
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

FIRST, SECOND = (f"models:/dreamshard.tables.simulated-h100-x2/{number}" for number in (1, 2))
WARM = Warm(version=FIRST, training="first", iteration=2, trainings=("first",))
MADE_OF = {
    "first": training_of(hardware="simulated H100"),
    "second": training_of(hardware="simulated H100", mode="fixed", memory_bytes=2**29, warm=WARM),
}


@pytest.fixture
def registered(mlflow_settings, placer: TrainedPlacer, version: str, task: PlacementTask) -> Store:
    """Version 1 of training `first`, the champion, and version 2 of training `second`."""
    for training, made_of in MADE_OF.items():
        with runs.open_run(mlflow_settings, "retrain") as run:
            run.log_params({"iterations": 2, "tables": 4})
            tags = {"training": training, "evaluation": "of it", "dataset": version, "iteration": 2}
            gain = {"gain_over_champion_pct": 25.0, "cost_ms": 3.0}
            registration.register_placer(mlflow_settings, placer, run, made_of, metrics=gain, tags=tags)
    set_alias(mlflow_settings, FIRST, "champion", "the first")
    return mlflow_settings


def rows(store: Store, sql: str) -> list[dict]:
    registry.write_versions(store)
    return query(store, sql)


def test_versions_are_rows_that_say_what_they_are(registered: Store):
    first, second = rows(registered, "from versions order by version")
    assert (first["model"], first["version"], first["aliases"]) == ("tables", 1, "champion")
    assert (first["reason"], first["is_default"], first["devices"]) == ("the first", True, 2)
    assert (second["source"], second["tables"], second["warm_from"], second["memory_gb"]) == ("tables.csv", 4, 1, 0.5)
    assert (second["tables_per_task"], second["iterations"], second["cost_ms"]) == ("all", 2, 3.0)
    assert (second["gain_over_champion_pct"], second["aliases"]) == (25.0, "")


def test_the_lake_has_the_registry_as_it_was_when_it_was_written(registered: Store):
    assert query(registered, "from versions") == []
    path, sql = registered.lake_root / "versions" / "versions.parquet", "from versions order by version"
    assert [row["aliases"] for row in rows(registered, sql)] == ["champion", ""]
    before = path.stat().st_mtime_ns
    registry.write_versions(registered)
    assert path.stat().st_mtime_ns == before
    set_alias(registered, SECOND, "champion", "better")
    assert [row["aliases"] for row in rows(registered, sql)] == ["previous", "champion"]


def test_a_candidate_is_the_version_that_it_became(registered: Store, task: PlacementTask, version: str):
    where = {"dataset_version": version, "testbed": "simulated", "hardware": "simulated H100"}
    evaluated = [make_evaluation(task, "dreamshard", 4.0), make_evaluation(task, "champion 1", 5.0)]
    write = registered.lake.write_evaluation
    champion = {"champion 1": {"model_version": FIRST}}
    write(evaluated, champion | {"dreamshard": {"training": "second", "iteration": 2}}, "again", **where)
    write(evaluated[:1], {"dreamshard": {"training": "second", "iteration": 3}}, "later", **where)
    listed = rows(registered, "select run_key, placer, registered_model, model_version from evaluations order by all")
    model = "dreamshard.tables.simulated-h100-x2"
    assert [tuple(row.values()) for row in listed] == [
        ("again", "champion 1", model, 1),
        ("again", "dreamshard", model, 2),
        ("later", "dreamshard", None, None),
    ]


def test_tables_never_measured_alone_are_estimated(registered: Store, task: PlacementTask, version: str):
    placer = make_placer(start_training(four_tables(), TrainingConfig(), seed=0))
    placer.cost_network.measured_on = MeasuredOn.of(make_sample(task, [1, 0, 1]))
    for training in ("first", "second"):
        registered.lake.write_estimates(placer, version, training, 2)
    estimated = rows(registered, "from table_costs order by table_name")
    assert [row["table_name"] for row in estimated] == ["a", "b/c", "d", "e"]
    assert {(row["origin"], row["model_version"]) for row in estimated} == {("estimated", 1)}
    assert all(row["compute_ms"] > 0 for row in estimated)
    set_alias(registered, SECOND, "champion", "better")
    assert {row["model_version"] for row in rows(registered, "from table_costs")} == {2}
