"""Versions of several algorithms in one registry: each has its own numbers, aliases and champions."""

from pathlib import Path

import pytest

from storage.mlflow_store import champions, registration, registry, runs
from storage.mlflow_store.alias_changes import make_champion, set_alias
from storage.settings import Settings

TOPOLOGY = "simulated h100 · 2 devices"


@pytest.fixture
def settings(mlflow_settings: Settings, placer_folder: Path) -> Settings:
    """Version 1 of dreamshard, the champion, and versions 1 (the champion) and 2 of paper, all of one topology."""
    for number, algorithm in enumerate(("dreamshard", "paper", "paper")):
        own = mlflow_settings.of(algorithm)
        with runs.chain(own, "retrain") as run:
            tags = {"topology": TOPOLOGY, "training": f"training{number}"}
            version = registration.register_placer(own, placer_folder, run, tags=tags)
        if number < 2:
            set_alias(own, version, "champion", "the first")
    return mlflow_settings


def test_each_algorithm_has_champions_of_its_own_and_a_reference_finds_any_version(settings: Settings):
    paper = settings.of("paper")
    assert registry.aliases(settings) == {"champion": "1"}
    assert registry.aliases(paper) == {"champion": "paper:1"}
    assert champions.champions(settings) == {TOPOLOGY: "1"}
    assert champions.champions(paper) == {TOPOLOGY: "paper:1"}
    assert registry.tags_by_version(paper).keys() == {"paper:2", "paper:1"}
    for own in (settings, paper):
        assert registry.version_tags(own, "1")["training"] == "training0"
        assert registry.version_tags(own, "paper:champion")["training"] == "training1"
        assert registry.referenced_keys(own) == {"training0", "training1", "training2"}
    assert registry.version_link("paper:2").startswith("#/models/dreamshard-paper/versions/2?")


def test_a_version_made_champion_by_hand_replaces_that_of_its_own_algorithm_only(settings: Settings):
    change = make_champion(settings, "paper:2", "a hunch", "ann")
    assert (change.version, change.former) == ("paper:2", "paper:1")
    assert registry.aliases(settings.of("paper")) == {"champion": "paper:2", "previous": "paper:1"}
    assert registry.aliases(settings) == {"champion": "1"}
    assert make_champion(settings, "paper:previous", "", "ann").version == "paper:1"
    with pytest.raises(ValueError, match="no champion yet of autoshard"):
        registry.load_placer("autoshard:champion", settings)
