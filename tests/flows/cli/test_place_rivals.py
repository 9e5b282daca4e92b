"""`dreamshard place --placer` with a published rival."""

import json

import pytest

from storage.settings import Settings

TABLES = "name,rows,dim,pooling_factor\nusers,1000,64,1\nitems,1000,64,12\nwords,1000,64,12\n"


@pytest.fixture
def place(place_tables):
    """A function that runs `dreamshard place` for three tables on two devices."""
    return lambda rival: place_tables(TABLES, "--devices", "2", "--memory-gb", "1", "--placer", rival)


@pytest.mark.parametrize(
    "rival",
    ["neuroshard", "neuroshard_columns", "cost_greedy", "dreamshard_policy"],
)
def test_rivals_that_place_by_predicted_costs_say_that_there_is_no_champion(place, rival):
    done = place(rival)
    assert done.returncode == 1
    assert f"{rival} places by a trained cost network and there is none" in done.sentence


def test_a_rival_that_has_to_measure_is_refused(place):
    done = place("rnn")
    assert done.returncode == 1
    assert "nothing to measure on" in done.sentence


def test_torchrecs_planner_says_which_bandwidths_it_assumes(place_tables):
    pytest.importorskip("torchrec")
    shape = ("--devices", "2", "--memory-gb", "1", "--placer", "torchrec_planner_columns")
    done = place_tables(TABLES, *shape)
    assert done.returncode == 0, done.sentence
    assert "assumes TorchRec's default bandwidths; say --hardware" in done.stderr
    assert "default bandwidths" not in place_tables(TABLES, *shape, "--hardware", "h100").stderr


@pytest.mark.parametrize("alias", ["challenger", "previous"])
def test_an_alias_that_no_version_bears_is_one_sentence(place, alias):
    done = place(alias)
    assert done.returncode == 1
    assert f"there is no {alias} yet" in done.sentence


@pytest.fixture
def damaged_champion(monkeypatch):
    """A registry that has a champion whose files cannot be read."""
    from storage.mlflow_store import registry, versions

    def load(name, settings):
        raise ValueError("version 1 cannot be read")

    monkeypatch.setattr(Settings, "has_registry", True)  # the home has no database
    monkeypatch.setattr(registry, "champion", lambda settings: "models:/m/1")
    monkeypatch.setattr(registry, "version_tags", lambda settings, name: {})
    monkeypatch.setattr(registry, "load_placer", load)
    monkeypatch.setattr(versions, "version", lambda settings, name: {})


@pytest.mark.parametrize("rival", ["neuroshard_columns", "cost_greedy", "size_greedy", "champion"])
def test_a_damaged_champion_is_said_by_whoever_needs_it(place, damaged_champion, rival):
    done = place(rival)
    assert done.returncode == 1
    assert "version 1 cannot be read" in done.sentence


@pytest.mark.parametrize(
    "rival",
    ["neuroshard", "neuroshard_columns", "cost_greedy", "dreamshard_policy"],
)
def test_with_a_champion_rivals_place_by_its_predicted_costs(place, rival, monkeypatch, tmp_path):
    from dreamshard.training import TrainingConfig
    from dreamshard.workloads import read_tables
    from storage.mlflow_store import registry, versions
    from tests.helpers.trained import make_placer, start_training

    (tmp_path / "tables.csv").write_text(TABLES)
    champion = make_placer(start_training(read_tables(tmp_path / "tables.csv"), TrainingConfig(), seed=0))
    monkeypatch.setattr(Settings, "has_registry", True)  # the home has no database
    monkeypatch.setattr(registry, "champion", lambda settings: "models:/m/1")
    monkeypatch.setattr(versions, "version", lambda settings, name: {})
    monkeypatch.setattr(registry, "load_placer", lambda name, settings: champion)
    monkeypatch.setattr(registry, "version_tags", lambda settings, name: {})
    done = place(rival)
    assert done.returncode == 0, done.sentence
    plan = json.loads(done.stdout)
    assert plan["placer"] == rival
    assert plan["tables"].keys() == {"users", "items", "words"}
    assert plan["predicted"]["overall_ms"] > 0
