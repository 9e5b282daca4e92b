import shutil
from pathlib import Path

import pytest
import torch

from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer
from storage.mlflow_store import registration, registry, runs
from storage.mlflow_store.registry import make_champion, set_alias
from storage.run_records.trainings import Training
from storage.settings import Settings
from tests.helpers.versions import training_of

MODELLED = training_of(hardware="simulated h100")
MEASURED = training_of("cluster", "NVIDIA H200 x16", num_devices=16, devices_per_host=8)
FIRST, SECOND = (f"models:/dreamshard-simulated-h100-2/{number}" for number in (1, 2))
RANKS = "models:/dreamshard-nvidia-h200-x16-2x8/1"


@pytest.fixture
def register(mlflow_settings: Settings, placer: TrainedPlacer):
    """A function that registers a version and returns it."""

    def make(made_of: Training = MODELLED, algorithm="dreamshard", **given) -> str:
        own = mlflow_settings.of(algorithm)
        with runs.open_run(own, "retrain") as run:
            return registration.register_placer(own, placer, run, made_of, **given)

    return make


@pytest.fixture
def registered(mlflow_settings: Settings, register, tables: Tables) -> Settings:
    """A home with one version, of simulated devices."""
    assert register(tags={"training": "first"}, pool=tables, metrics={"eval_overall_ms": 3.0}) == FIRST
    return mlflow_settings


def aliases_of(settings: Settings, name: str = FIRST) -> dict[str, str]:
    model = registry.find(settings, name).model
    return {alias: v.uri for v in registry.versions(settings) if v.model == model for alias in v.aliases}


def test_a_version_places_as_registered_and_holds_no_pickle(registered: Settings, placer, tables: Tables):
    task = PlacementTask(tables, 2, 10**6)
    loaded, placement = registry.load_placer(FIRST, registered), placer.place(task)
    assert torch.equal(loaded.place(task).device, placement.device)
    assert torch.equal(loaded.predict(task, placement).phases_ms, placer.predict(task, placement).phases_ms)
    assert registry.find(registered, FIRST).made_of == MODELLED
    kinds = {path.suffix for path in (registered.home / "mlartifacts").rglob("*") if path.is_file()}
    assert ".safetensors" in kinds
    assert not kinds & {".pkl", ".pickle", ".pt", ".pth", ".bin", ".cloudpickle"}
    for name in ("champion", "7", "best", "models:/dreamshard-simulated-h100-2/7", "models:/other/1"):
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
    assert change == {"version": FIRST, "former": None, "topology": where}
    register()
    change = make_champion(registered, "2", "a hunch", "ann")
    assert change == {"version": SECOND, "former": FIRST, "topology": where}
    assert registry.REPLACED in registry.find(registered, FIRST).tags
    assert make_champion(registered, "previous", "it was wrong", "bob")["version"] == FIRST
    assert aliases_of(registered) == {"champion": FIRST, "previous": SECOND}
    tags = registry.find(registered, "1").tags
    assert (tags["reason"], tags["decided_by"], registry.REPLACED in tags) == ("it was wrong", "bob", False)
    assert tags["decided_at"].endswith(" UTC")
    make_champion(registered, "champion", "again", "bob")
    assert registry.find(registered, "1").tags == tags
    shutil.rmtree(next((registered.home / "mlartifacts").rglob(f"{registry.find(registered, SECOND).model_id}*")))
    with pytest.raises(ValueError):
        make_champion(registered, SECOND, "it cannot place any more", "ann")
    assert aliases_of(registered)["champion"] == FIRST


def test_a_try_out_has_no_standing_until_it_is_promoted(registered: Settings):
    registry.tag(registered, FIRST, {registry.TRYOUT: "yes"})
    assert registry.champion(registered, MODELLED.topology) is None
    assert registry.version_rows(registered)[0]["standing"] == "try-out"
    make_champion(registered, FIRST, "it is good", "ann")
    assert registry.champion(registered).uri == FIRST
    assert not registry.find(registered, FIRST).is_tryout


def test_measured_costs_take_champion_over_from_modelled_ones(registered: Settings, register):
    set_alias(registered, FIRST, "champion", "the first")
    assert register(MEASURED) == RANKS
    set_alias(registered, RANKS, "champion", "the first of its kind")
    found = [registry.champion(registered, each.topology).uri for each in (MODELLED, MEASURED)]
    assert found == [FIRST, RANKS]
    assert registry.champion(registered).uri == RANKS
    set_alias(registered, FIRST, "champion", "again")
    assert registry.find(registered, "1").uri == RANKS, "modelled costs do not take over from measured ones"
    make_champion(registered, FIRST, "a plan for other devices", "ann")
    assert registry.find(registered, "1").uri == FIRST, "a person may choose"


def test_each_algorithm_has_its_own_champions(registered: Settings, register):
    set_alias(registered, FIRST, "champion", "the first")
    paper = registered.of("paper")
    version = register(algorithm="paper", tags={"training": "second"})
    set_alias(paper, version, "champion", "the first")
    assert version == registry.champion(paper).uri == "models:/paper-simulated-h100-2/1"
    assert registry.champion(registered).uri == FIRST
    assert [each.uri for each in registry.versions(paper)] == [version]
    for own in (registered, paper):
        assert registry.find(own, version).training == "second"
        assert registry.find(own, "models:/paper-simulated-h100-2@champion").training == "second"
        assert registry.referenced_keys(own) == {"first", "second"}
    assert {row["reference"] for row in registry.version_rows(registered)} == {version, FIRST}


def test_before_the_first_run_no_database_is_made(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    assert registry.version_rows(settings) == []
    with pytest.raises(ValueError):
        registry.load_placer("champion", settings)
    assert list(tmp_path.iterdir()) == []
