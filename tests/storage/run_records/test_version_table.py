"""Versions as rows of the lake, and what joins them: candidates of evaluations, and estimates of their tables."""

from pathlib import Path

import pytest

from dreamshard.measured_on import MeasuredOn
from dreamshard.tasks import PlacementTask
from storage import notebook
from storage.lake import catalog, schemas
from storage.lake.parquet_files import read_parquet
from storage.mlflow_store import registration, registry, runs
from storage.mlflow_store.alias_changes import set_alias
from storage.run_records import table_estimates, version_table
from storage.run_records.lineage import conditions
from storage.settings import Settings
from storage.store import Store
from tests.helpers.samples import make_evaluation, make_sample


@pytest.fixture
def registered(mlflow_settings: Settings, placer_folder: Path, version: str, task: PlacementTask) -> Store:
    """Version 1 of training `first`, the champion, and version 2 of training `second`, which says more about itself."""
    facts = {"dataset": version, "hardware": "simulated H100", "testbed": "simulated", "iteration": 2}
    facts |= conditions(MeasuredOn.of(make_sample(task, [1, 0, 1])))
    told = {"name": "v2 tables.csv +1", "source": "tables.csv", "tables": 4, "warm_from": "1", "memory_gb": "0.5"}
    for training, more in (("first", {}), ("second", told)):
        with runs.chain(mlflow_settings, "retrain") as run:
            tags = {"training": training, "evaluation": f"of {training}", **facts, **more}
            metrics = {"eval_overall_ms": 3.0, "eval_predicted_mape": 0.25}
            registration.register_placer(mlflow_settings, placer_folder, run, metrics=metrics, tags=tags)
    set_alias(mlflow_settings, "1", "champion", "the first")
    return Store(mlflow_settings)


def test_a_home_that_is_named_is_read_whatever_this_process_works_with(registered: Store, monkeypatch, tmp_path):
    version_table.write_versions(registered)
    monkeypatch.setenv("DREAMSHARD_STORE", str(tmp_path / "another"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")
    assert notebook.view("versions", registered.settings.home)["version"].tolist() == [1, 2]


def test_versions_are_rows_that_say_what_they_are(registered: Store):
    first, second = catalog_rows(registered, "from versions order by version")
    assert (first["version"], first["aliases"], first["reason"], first["name"]) == (1, "champion", "the first", None)
    assert (second["name"], second["source"], second["tables"], second["warm_from"]) == (
        "v2 tables.csv +1",
        "tables.csv",
        4,
        1,
    )
    assert (second["devices"], second["memory_gb"], second["batch_size"], second["iterations"]) == (2, 0.5, 512, 2)
    assert (second["eval_overall_ms"], second["prediction_error"], second["champion_of"]) == (3.0, 0.25, None)


def test_the_lake_has_the_registry_as_it_was_when_it_was_written(registered: Store):
    assert catalog.query(registered.settings, "from versions") == []
    version_table.write_versions(registered)
    (path,) = (registered.settings.lake_root / "versions").iterdir()
    before = path.stat().st_mtime_ns
    version_table.write_versions(registered)
    assert path.stat().st_mtime_ns == before
    set_alias(registered.settings, "2", "champion", "better")
    written = catalog.query(registered.settings, "select aliases from versions order by version")
    assert [row["aliases"] for row in written] == ["champion", None]
    version_table.write_versions(registered)
    assert read_parquet(path).schema.names == schemas.VERSIONS.names
    assert read_parquet(path).column("aliases").to_pylist() == ["previous", "champion"]


def test_a_candidate_is_the_version_that_it_became(registered: Store, task: PlacementTask, version: str):
    where = {"dataset_version": version, "testbed": "simulated", "hardware": "simulated H100"}
    evaluated = [make_evaluation(task, "dreamshard", 4.0), make_evaluation(task, "random", 5.0)]
    lake = registered.lake
    lake.write_evaluation(evaluated, {}, "again", **where, candidates={"dreamshard": ("second", 2)})
    lake.write_evaluation(evaluated, {}, "later", **where, candidates={"dreamshard": ("second", 3)})
    found = catalog_rows(registered, "select run_key, placer, model_version from evaluations order by all")
    assert [tuple(row.values()) for row in found] == [
        ("again", "dreamshard", 2),
        ("again", "random", None),
        ("later", "dreamshard", None),
        ("later", "random", None),
    ]


def test_tables_never_measured_alone_are_estimated_by_the_champion(registered: Store):
    for version in ("1", "2"):
        tags = registry.version_tags(registered.settings, version)
        table_estimates.write_estimates(registered, version, tags)
    version_table.write_versions(registered)
    estimated = notebook.view("table_costs", registered.settings.home)
    assert sorted(estimated["table_name"]) == ["a", "b/c", "d", "e"]
    assert set(estimated["origin"]) == {"estimated"}
    assert set(estimated["error"]) == {0.25}
    assert set(estimated["model_version"]) == {1}
    assert (estimated["compute_ms"] > 0).all()
    set_alias(registered.settings, "2", "champion", "better")
    version_table.write_versions(registered)
    assert set(notebook.view("table_costs", registered.settings.home)["model_version"]) == {2}


def catalog_rows(store: Store, sql: str) -> list[dict[str, object]]:
    version_table.write_versions(store)
    return catalog.query(store.settings, sql)
