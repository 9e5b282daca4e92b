import shutil
from pathlib import Path

import pytest
import torch

from dreamshard.costs import MeasuredOn
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer, TrainingConfig
from storage.mlflow_store import registry, runs
from storage.mlflow_store.registry import make_champion, set_alias
from storage.run_records.trainings import Training, Warm, in_words, names_version, number_of
from storage.settings import Settings
from storage.store import Store
from tests.helpers.lake import query
from tests.helpers.samples import four_tables, make_evaluation, make_sample
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

MODELLED = training_of(hardware="simulated h100")
MEASURED = training_of("cluster", "NVIDIA H200 x16", num_devices=16, devices_per_host=8)
FIRST, SECOND = (f"models:/dreamshard.tables.simulated-h100-x2/{number}" for number in (1, 2))
RANKS = "models:/dreamshard.tables.h200-2x8/1"


@pytest.fixture
def register(mlflow_settings: Settings, placer: TrainedPlacer):
    """A function that registers a version and returns it."""

    def make(made_of: Training = MODELLED, params=None, **given) -> str:
        with runs.open_run(mlflow_settings, "retrain") as run:
            run.log_params(params or {})
            return runs.register_placer(mlflow_settings, placer, run, made_of, **given)

    return make


@pytest.fixture
def registered(mlflow_settings: Settings, register, tables: Tables) -> Settings:
    """A home with one version, of simulated devices."""
    assert register(tags={"training": "first"}, pool=tables, metrics={"cost_ms": 3.0}) == FIRST
    return mlflow_settings


def aliases_of(settings: Settings, name: str = FIRST) -> dict[str, str]:
    model = registry.find(settings, name).model
    return {alias: v.uri for v in registry.versions(settings) if v.model == model for alias in v.aliases}


def test_a_version_places_as_registered_and_holds_no_pickle(registered: Settings, placer, tables: Tables):
    task = PlacementTask(tables, 2, 10**6)
    loaded, placement = registry.load_placer(FIRST, registered), placer.place(task)
    assert loaded.place(task) == placement
    assert torch.equal(loaded.predict(task, placement).phases_ms, placer.predict(task, placement).phases_ms)
    assert registry.find(registered, FIRST).made_of == MODELLED
    kinds = {path.suffix for path in (registered.home / "mlartifacts").rglob("*") if path.is_file()}
    assert ".safetensors" in kinds
    assert not kinds & {".pkl", ".pickle", ".pt", ".pth", ".bin", ".cloudpickle"}
    for name in ("champion", "7", "best", "models:/dreamshard.tables.simulated-h100-x2/7", "models:/other/1"):
        with pytest.raises(ValueError):
            registry.load_placer(name, registered)


def test_an_alias_moves_and_the_former_champion_stays_known(registered: Settings, register):
    set_alias(registered, FIRST, "champion", "the first")
    assert register() == SECOND
    set_alias(registered, SECOND, "challenger", "0.3 % worse")
    assert aliases_of(registered) == {"champion": FIRST, "challenger": SECOND}
    for reason in ("3.1 % better", "again"):
        set_alias(registered, SECOND, "champion", reason, provisional="few tasks")
        assert aliases_of(registered) == {"champion": SECOND, "previous": FIRST}
    champion = registry.find(registered, "champion")
    assert (champion.tags["reason"], champion.tags["decided_by"]) == ("again", registry.BY_EVALUATION)
    assert "few tasks" in champion.provisional
    assert registry.REPLACED not in registry.find(registered, "previous").tags, "an evaluation decided"


def test_a_version_made_champion_by_hand_is_undone_with_previous(registered: Settings, register):
    where = str(MODELLED.topology)
    change = make_champion(registered, FIRST, "to begin", "ann")
    assert change == {"version": FIRST, "former": None, "model": "tables", "topology": where}
    registry.describe(registered, FIRST, report="a report\n\nof two parts")
    register()
    change = make_champion(registered, "2", "a hunch", "ann")
    assert change == {"version": SECOND, "former": FIRST, "model": "tables", "topology": where}
    assert registry.REPLACED in registry.find(registered, FIRST).tags
    assert make_champion(registered, "previous", "it was wrong", "bob")["version"] == FIRST
    assert aliases_of(registered) == {"champion": FIRST, "previous": SECOND}
    tags = registry.find(registered, "1").tags
    assert (tags["reason"], tags["decided_by"], registry.REPLACED in tags) == ("it was wrong", "bob", False)
    assert tags["decided_at"].endswith(" UTC")
    make_champion(registered, "champion", "again", "bob")
    first = registry.find(registered, "1")
    assert (first.tags, first.report) == (tags, "a report\n\nof two parts")
    decisions = [line.split(": ", 1)[1] for line in first.description.partition("\n\n")[0].splitlines()]
    assert decisions == ["champion, to begin", "replaced by version 2, a hunch", "champion, it was wrong"]
    shutil.rmtree(next((registered.home / "mlartifacts").rglob(f"{registry.find(registered, SECOND).model_id}*")))
    with pytest.raises(ValueError):
        make_champion(registered, SECOND, "it cannot place any more", "ann")
    assert aliases_of(registered)["champion"] == FIRST


def test_measured_costs_take_champion_over_from_modelled_ones(registered: Settings, register):
    set_alias(registered, FIRST, "champion", "the first")
    assert register(MEASURED) == RANKS
    set_alias(registered, RANKS, "champion", "the first of its kind")
    champions = [registry.champion(registered, training.registered_model).uri for training in (MODELLED, MEASURED)]
    assert champions == [FIRST, RANKS]
    assert registry.champion(registered).uri == RANKS
    set_alias(registered, FIRST, "champion", "again")
    assert registry.find(registered, "1").uri == RANKS, "modelled costs do not take over from measured ones"
    make_champion(registered, FIRST, "a plan for other devices", "ann")
    assert registry.find(registered, "1").uri == FIRST, "a person may choose"


def test_two_models_on_one_hardware_never_meet(registered: Settings, register):
    set_alias(registered, FIRST, "champion", "the first")
    ads = register(training_of(hardware="simulated h100", source="/data/ads.csv"), tags={"training": "second"})
    assert ads == "models:/dreamshard.ads.simulated-h100-x2/1"
    assert registry.champion(registered, "ads") is None
    set_alias(registered, ads, "champion", "the first")
    assert [registry.champion(registered, model).uri for model in ("tables", "ads")] == [FIRST, ads]
    assert registry.find(registered, "champion", "ads").uri == registry.find(registered, f"{ads[:-2]}@champion").uri
    with pytest.raises(ValueError, match="of several models"):
        registry.find(registered, "champion")
    assert registry.referenced_keys(registry.versions(registered)) == {"first", "second"}
    by_alias = runs.client(registered).get_model_version_by_alias(ads[:-2].removeprefix("models:/"), "champion")
    assert int(by_alias.version) == 1, "as MLflow's own address of it says"


def test_registered_models_of_others_are_left_alone(registered: Settings):
    for name in ("paper-ranker", "dreamshard-2", "dreamshard.theirs"):
        runs.client(registered).create_registered_model(name)
        runs.client(registered).create_model_version(name, "file:///elsewhere")
    assert [version.uri for version in registry.versions(registered)] == [FIRST]


def test_before_the_first_run_no_database_is_made(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    assert registry.version_rows(settings, registry.versions(settings)) == []
    with pytest.raises(ValueError):
        registry.load_placer("champion", settings)
    assert list(tmp_path.iterdir()) == []


WARM = Warm(version=FIRST, training="first", iteration=2, trainings=("first",))
MADE_OF = {
    "first": training_of(hardware="simulated H100"),
    "second": training_of(hardware="simulated H100", mode="fixed", memory_bytes=2**29, warm=WARM),
}


@pytest.fixture
def two_versions(mlflow_settings: Store, register, version: str) -> Store:
    """Version 1 of training `first`, the champion, and version 2 of training `second`."""
    for training, made_of in MADE_OF.items():
        tags = {"training": training, "evaluation": "of it", "dataset": version, "iteration": 2}
        gain = {"gain_over_champion_pct": 25.0, "cost_ms": 3.0}
        register(made_of, {"iterations": 2, "tables": 4}, metrics=gain, tags=tags)
    set_alias(mlflow_settings, FIRST, "champion", "the first")
    return mlflow_settings


def rows(store: Store, sql: str) -> list[dict]:
    registry.write_versions(store)
    return query(store, sql)


def test_versions_are_rows_that_say_what_they_are(two_versions: Store):
    first, second = rows(two_versions, "from versions order by version")
    assert (first["model"], first["version"], first["aliases"]) == ("tables", 1, "champion")
    assert (first["reason"], first["is_default"], first["devices"]) == ("the first", True, 2)
    assert (second["source"], second["tables"], second["warm_from"], second["memory_gb"]) == ("tables.csv", 4, 1, 0.5)
    assert (second["tables_per_task"], second["iterations"], second["cost_ms"]) == ("all", 2, 3.0)
    assert (second["gain_over_champion_pct"], second["aliases"]) == (25.0, "")


def test_the_lake_has_the_registry_as_it_was_when_it_was_written(two_versions: Store):
    assert query(two_versions, "from versions") == []
    path, sql = two_versions.lake_root / "versions" / "versions.parquet", "from versions order by version"
    assert [row["aliases"] for row in rows(two_versions, sql)] == ["champion", ""]
    before = path.stat().st_mtime_ns
    registry.write_versions(two_versions)
    assert path.stat().st_mtime_ns == before
    set_alias(two_versions, SECOND, "champion", "better")
    assert [row["aliases"] for row in rows(two_versions, sql)] == ["previous", "champion"]


def test_a_candidate_is_the_version_that_it_became(two_versions: Store, task: PlacementTask, version: str):
    where = {"dataset_version": version, "testbed": "simulated", "hardware": "simulated H100"}
    evaluated = [make_evaluation(task, "dreamshard", 4.0), make_evaluation(task, "champion 1", 5.0)]
    write = two_versions.lake.write_evaluation
    champion = {"champion 1": {"model_version": FIRST}}
    write(evaluated, champion | {"dreamshard": {"training": "second", "iteration": 2}}, "again", **where)
    write(evaluated[:1], {"dreamshard": {"training": "second", "iteration": 3}}, "later", **where)
    listed = rows(two_versions, "select run_key, placer, registered_model, model_version from evaluations order by all")
    model = "dreamshard.tables.simulated-h100-x2"
    assert [tuple(row.values()) for row in listed] == [
        ("again", "champion 1", model, 1),
        ("again", "dreamshard", model, 2),
        ("later", "dreamshard", None, None),
    ]


def test_tables_never_measured_alone_are_estimated(two_versions: Store, task: PlacementTask, version: str):
    placer = make_placer(start_training(four_tables(), TrainingConfig(), seed=0))
    placer.cost_network.measured_on = MeasuredOn.of(make_sample(task, [1, 0, 1]))
    for training in ("first", "second"):
        two_versions.lake.write_estimates(placer, version, training, 2)
    estimated = rows(two_versions, "from table_costs order by table_name")
    assert [row["table_name"] for row in estimated] == ["a", "b/c", "d", "e"]
    assert {(row["origin"], row["model_version"]) for row in estimated} == {("estimated", 1)}
    assert all(row["compute_ms"] > 0 for row in estimated)
    set_alias(two_versions, SECOND, "champion", "better")
    assert {row["model_version"] for row in rows(two_versions, "from table_costs")} == {2}


def test_a_reference_is_read_and_put_in_words():
    name = "dreamshard.ads.a100-x8"
    for text, words in {"3": "version 3", f"models:/{name}/3": f"{name} version 3", "champion": "champion"}.items():
        assert names_version(text)
        assert in_words(text) == words
    assert in_words(f"models:/{name}@previous") == in_words(f"models:/{name}/previous") == f"{name} previous"


@pytest.mark.parametrize("text", ["", "frog", "paper", "models:/frog", "models:/a/b/1", "lookup_greedy", "-1", "²"])
def test_anything_else_names_no_version(text: str):
    assert not names_version(text)
    with pytest.raises(ValueError):
        number_of(text)
