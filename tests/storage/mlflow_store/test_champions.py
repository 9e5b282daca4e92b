"""Champions of topologies and the alias `champion` on a real registry."""

import json
from pathlib import Path

import pytest

from storage.mlflow_store import champions, registration, registry, runs
from storage.mlflow_store.alias_changes import make_champion, set_alias, set_reason, set_standing
from storage.mlflow_store.alias_history import history
from storage.settings import Settings

RANKS, MODEL = "a machine · 2 devices", "simulated h100 · 2 devices"
SETTINGS = {RANKS: ("cluster", "a machine"), MODEL: ("simulated", "simulated h100")}


@pytest.fixture
def version(mlflow_settings: Settings, placer_folder: Path):
    """A function that registers a version of a topology and returns its number."""

    def make(topology: str) -> str:
        testbed, hardware = SETTINGS[topology]
        origin = json.dumps({"setting": {"testbed": testbed, "hardware": hardware, "devices": 2}})
        with runs.chain(mlflow_settings, "retrain") as run:
            return registration.register_placer(mlflow_settings, placer_folder, run, tags={"origin": origin})

    return make


def test_each_topology_has_a_champion_and_undoing_restores_the_one_that_was_displaced(
    version, mlflow_settings: Settings
):
    for topology in (RANKS, MODEL, MODEL):
        version(topology)
    set_alias(mlflow_settings, "1", "champion", "the first")
    set_standing(mlflow_settings, "2", "champion", "the first of its kind")
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "2"}
    assert registry.aliases(mlflow_settings) == {"champion": "1"}
    make_champion(mlflow_settings, "3", "a hunch", "ann")
    assert registry.aliases(mlflow_settings) == {"champion": "3", "previous": "1"}
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "3"}
    tagged = {number: tags.get("champion_of") for number, tags in registry.tags_by_version(mlflow_settings).items()}
    assert tagged == {"1": RANKS, "2": None, "3": MODEL}
    make_champion(mlflow_settings, "previous", "it was wrong", "ann")
    assert registry.aliases(mlflow_settings) == {"champion": "1", "previous": "3"}
    assert champions.champions(mlflow_settings) == {RANKS: "1", MODEL: "2"}
    tags = registry.version_tags(mlflow_settings, "2")
    assert [change.standing for change in history(tags)] == [
        f"{alias} of {MODEL}" for alias in ("champion", "previous", "champion")
    ]
    assert tags["topology"] == MODEL


def test_a_try_out_has_no_standing_until_it_is_promoted(version, mlflow_settings: Settings):
    version(RANKS)
    set_reason(mlflow_settings, "1", "only looked at")
    assert champions.champion_of(mlflow_settings, RANKS) is None
    assert registry.find(mlflow_settings, "1").description == "try-out: only looked at"
    make_champion(mlflow_settings, "1", "it is good", "ann")
    assert champions.champion_of(mlflow_settings, RANKS) == "1"
    assert "tryout" not in registry.version_tags(mlflow_settings, "1")


def test_the_homes_setting_is_kept_with_the_registry_and_a_repeated_one_changes_nothing(mlflow_settings: Settings):
    assert champions.home_setting(mlflow_settings) is None
    champions.set_home_setting(mlflow_settings, "cluster", 8)
    first = champions.home_setting(mlflow_settings)
    assert first is not None
    assert str(first) == "cluster with 8 devices"
    champions.set_home_setting(mlflow_settings, "cluster", 8)
    assert champions.home_setting(mlflow_settings) == first
    champions.set_home_setting(mlflow_settings, None, None)
    assert champions.home_setting(mlflow_settings) is None
    assert registry.aliases(mlflow_settings) == {}
