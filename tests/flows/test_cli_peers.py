"""`dreamshard place --placer` with a published rival."""

import json

import pytest
from typer.testing import CliRunner

TABLES = "name,rows,dim,pooling_factor\nusers,1000,64,1\nitems,1000,64,12\nwords,1000,64,12\n"


@pytest.fixture
def place(monkeypatch, tmp_path):
    """The outcome of `dreamshard place` for three tables on two devices, in a home without a champion."""
    from flows.cli import app

    (tmp_path / "tables.csv").write_text(TABLES)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    sizes = ("--devices", "2", "--memory-gb", "1")

    def run(rival: str):
        return CliRunner().invoke(app, ["place", str(tmp_path / "tables.csv"), *sizes, "--placer", rival])

    return run


def test_torchrecs_planner_needs_no_champion(place):
    pytest.importorskip("torchrec")
    done = place("torchrec_planner")
    assert done.exit_code == 0, done.exception
    plan = json.loads(done.stdout)
    device = {shard["table"]: shard["device"] for shard in plan["shards"]}
    assert plan["placer"] == "torchrec_planner"
    assert device["items"] != device["words"]


@pytest.mark.parametrize("rival", ["neuroshard", "rnn", "autoshard"])
def test_rivals_that_place_by_predicted_costs_say_that_there_is_no_champion(place, rival):
    done = place(rival)
    assert done.exit_code == 1
    assert f"{rival} places by a trained cost network and there is none" in str(done.exception)


def test_a_name_that_is_none_is_told_of_the_rivals_too(place):
    done = place("pseudoshard")
    assert done.exit_code == 1
    assert "'neuroshard'" in str(done.exception)
    assert "'torchrec_planner'" in str(done.exception)


@pytest.mark.parametrize("rival", ["neuroshard", "autoshard"])
def test_with_a_champion_rivals_place_by_its_predicted_costs_and_training_is_said(place, rival, monkeypatch, tmp_path):
    from dreamshard.tables import Tables
    from dreamshard.training import TrainingConfig, make_placer, start_training
    from storage import registry

    champion = make_placer(start_training(Tables.from_csv(tmp_path / "tables.csv"), TrainingConfig(), seed=0))
    monkeypatch.setattr(registry, "load_placer", lambda name: champion)
    done = place(rival)
    assert done.exit_code == 0, done.exception
    plan = json.loads(done.stdout)
    assert {shard["table"] for shard in plan["shards"]} == {"users", "items", "words"}
    assert plan["predicted"]["overall_ms"] > 0
    assert ("trains on these tables alone" in done.stderr) == (rival == "autoshard")
