import shutil
from pathlib import Path

import mlflow.pyfunc
import pytest
import torch
from mlflow.exceptions import MlflowException

from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import load_placer
from storage.mlflow_store import registration, registry, runs, versions
from storage.mlflow_store.alias_changes import ChampionChange, make_champion, set_alias
from storage.mlflow_store.alias_history import history
from storage.mlflow_store.experiment import EXPERIMENT
from storage.settings import Settings
from tests.helpers.samples import columns_of


def register(settings: Settings, folder: Path, overall_ms: float = 3.0, **more) -> str:
    with runs.chain(settings, "retrain") as run:
        return registration.register_placer(settings, folder, run, metrics={"eval_overall_ms": overall_ms}, **more)


@pytest.fixture
def registered(mlflow_settings: Settings, placer_folder: Path, tables: Tables) -> Settings:
    """A home with version 1."""
    register(mlflow_settings, placer_folder, tags={"training": "first"}, pool=tables)
    return mlflow_settings


def test_a_version_places_as_the_placer_that_was_registered(registered: Settings, placer_folder: Path, tables: Tables):
    task = PlacementTask(tables, 2, 10**6)
    loaded, saved = registry.load_placer("1", registered), load_placer(placer_folder)
    assert torch.equal(loaded.place(task).device, saved.place(task).device)
    placement = saved.place(task)
    assert torch.equal(loaded.predict(task, placement).phases_ms(), saved.predict(task, placement).phases_ms())


def test_nothing_in_a_version_is_pickled(registered: Settings):
    kinds = {path.suffix for path in (registered.home / "mlartifacts").rglob("*") if path.is_file()}
    assert ".safetensors" in kinds
    assert not kinds & {".pkl", ".pickle", ".pt", ".pth", ".bin", ".cloudpickle"}


def test_an_alias_moves_and_the_former_champion_stays_known(registered: Settings, placer_folder: Path):
    set_alias(registered, "1", "champion", "the first")
    second = register(registered, placer_folder)
    set_alias(registered, second, "challenger", "0.3 % worse")
    assert registry.aliases(registered) == {"champion": "1", "challenger": "2"}
    set_alias(registered, second, "champion", "3.1 % better")
    assert registry.aliases(registered) == {"champion": "2", "previous": "1"}
    tags = registry.version_tags(registered, "champion")
    assert (tags["alias"], tags["reason"]) == ("champion", "3.1 % better")
    set_alias(registered, second, "champion", "again")
    assert registry.aliases(registered) == {"champion": "2", "previous": "1"}


def test_a_version_made_champion_by_hand_is_undone_with_previous_and_says_who_why_and_when(
    registered: Settings, placer_folder: Path
):
    assert make_champion(registered, "1", "to begin", "ann") == ChampionChange(version="1", former=None)
    register(registered, placer_folder)
    set_alias(registered, "2", "challenger", "0.3 % worse")
    assert make_champion(registered, "2", "a hunch", "ann") == ChampionChange(version="2", former="1")
    assert registry.aliases(registered) == {"champion": "2", "previous": "1"}
    assert registry.version_tags(registered, "1")["alias"] == "previous"
    assert make_champion(registered, "previous", "it was wrong", "bob") == ChampionChange(version="1", former="2")
    assert registry.aliases(registered) == {"champion": "1", "previous": "2"}
    tags = registry.version_tags(registered, "1")
    assert (tags["reason"], tags["decided_by"]) == ("it was wrong", "bob")
    assert tags["decided_at"].endswith(" UTC")
    changes = history(tags)
    assert [(change.alias, change.by, change.replaced_by) for change in changes] == [
        ("champion", "ann", None),
        ("previous", "ann", "2"),
        ("champion", "bob", None),
    ]
    assert changes[-1].at == tags["decided_at"]
    lines = versions.version(registered, "1")["tags"]["history"].splitlines()
    assert [line.partition(" UTC ")[2] for line in lines] == [
        "champion, by ann: to begin",
        "previous, by ann: replaced by version 2",
        "champion, by bob: it was wrong",
    ]
    assert make_champion(registered, "champion", "again", "bob").former == "1"
    assert registry.version_tags(registered, "1") == tags


def test_a_version_that_cannot_place_is_not_made_champion(registered: Settings, placer_folder: Path):
    set_alias(registered, "1", "champion", "the first")
    register(registered, placer_folder)
    shutil.rmtree(next((registered.home / "mlartifacts").rglob(f"{_model_of(registered, '2')}*")))
    with pytest.raises(ValueError, match="version 2 of dreamshard cannot be read"):
        make_champion(registered, "2", "a hunch", "ann")
    assert registry.aliases(registered) == {"champion": "1"}


def _model_of(settings: Settings, version: str) -> str:
    return runs.client(settings).get_model_version(settings.registered_model, version).source.removeprefix("models:/")


def test_versions_compare_side_by_side_under_the_same_names(registered: Settings, placer_folder: Path):
    register(registered, placer_folder, 2.0)
    set_alias(registered, "2", "champion", "better")
    figures = {"eval_gain_over_random": 0.2, "eval_place_ms": float("inf")}
    registration.log_model_metrics(
        registered, registry.run_of(registered, "2"), registry.model_of(registered, "2"), figures
    )
    newest, oldest = versions.versions(registered)
    assert list(newest) == list(oldest)
    assert (newest["version"], newest["aliases"], newest["reason"]) == ("2", "champion", "better")
    assert (newest["eval_overall_ms"], oldest["eval_overall_ms"]) == (2.0, 3.0)
    assert (newest["eval_gain_over_random"], oldest["eval_gain_over_random"]) == (0.2, None)
    tracking = runs.client(registered)
    found = tracking.search_logged_models([tracking.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert all("eval_overall_ms" in {metric.key for metric in model.metrics} for model in found)


def test_versions_of_all_algorithms_are_listed_newest_first(registered: Settings, placer_folder: Path):
    register(registered.of("paper"), placer_folder)
    assert [row["version"] for row in versions.versions(registered)] == ["paper:1", "1"]
    with pytest.raises(ValueError, match=r"no version 'paper:2' of dreamshard-paper .* version paper:1"):
        versions.version(registered, "paper:2")
    with pytest.raises(ValueError, match=r"no champion yet of dreamshard at .*`dreamshard promote 1`"):
        versions.version(registered, "champion")
    with pytest.raises(ValueError, match=r"no champion yet of autoshard .*`dreamshard run --algorithm autoshard`"):
        versions.version(registered, "autoshard")


def test_before_the_first_run_there_are_no_versions_and_no_database_is_made(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    assert versions.versions(settings) == []
    assert list(tmp_path.iterdir()) == []


def test_a_version_is_found_by_its_tags(registered: Settings):
    assert registry.find_version(registered, {"training": "first"}) == "1"
    assert registry.find_version(registered, {"training": "second"}) is None


def test_an_empty_registry_says_what_to_do(mlflow_settings: Settings):
    assert versions.versions(mlflow_settings) == []
    assert registry.champion(mlflow_settings) is None
    with pytest.raises(ValueError, match=r"no champion yet of .*train one with"):
        registry.load_placer("champion", mlflow_settings)


@pytest.mark.parametrize(
    ("name", "said"), [("champion", "champion yet"), ("7", "version '7'"), ("best", "version 'best'")]
)
def test_a_name_that_is_none_lists_those_there_are(registered: Settings, name: str, said: str):
    set_alias(registered, "1", "challenger", "to show it")
    with pytest.raises(ValueError, match=rf"there is no {said} of .*version 1 \(challenger\)"):
        registry.load_placer(name, registered)


def test_lost_files_of_a_version_are_one_clear_error(registered: Settings):
    shutil.rmtree(registered.home / "mlartifacts")
    with pytest.raises(ValueError, match="version 1"):
        registry.load_placer("1", registered)


def test_a_folder_without_a_placer_does_not_become_a_version(mlflow_settings: Settings, tmp_path: Path):
    with pytest.raises(ValueError, match="holds no readable model"):
        register(mlflow_settings, tmp_path)
    assert versions.versions(mlflow_settings) == []


REQUEST = {
    "num_devices": 2,
    "memory_gb": 1.0,
    "tables": [
        {"name": "a", "rows": 1000, "dim": 16, "pooling_factor": 1.0},
        {"name": "b", "rows": 2000, "dim": 32, "pooling_factor": 20.0},
    ],
}


def test_mlflows_own_model_places_every_column_once(registered: Settings):
    runs.client(registered)
    model = mlflow.pyfunc.load_model("models:/dreamshard/1")
    (plan,) = model.predict([REQUEST])
    assert columns_of(plan["shards"]) == {"a": list(range(16)), "b": list(range(32))}
    assert plan["placer"] == "dreamshard"
    with pytest.raises(MlflowException, match="num_devices: Input should be greater") as caught:
        model.predict([REQUEST | {"num_devices": 0}])
    assert caught.value.get_http_status_code() == 400
