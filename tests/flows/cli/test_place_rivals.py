from dataclasses import replace

import pytest

from dreamshard.training import TrainingConfig
from storage.mlflow_store import registry
from tests.helpers.tables import pool_of
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import version_of

TABLES = "name,rows,dim,pooling_factor\nusers,1000,64,1\nitems,1000,64,12\nwords,1000,64,12\n"
SHAPE = ("--devices", "2", "--memory-gb", "1", "--placer")
LEARNED = ("cost_greedy", "dreamshard_policy")


@pytest.fixture
def with_champion(monkeypatch):
    """Give the home, which has no database, a registry whose champion is what a function loads."""

    def give(load):
        champion = replace(version_of("models:/m/1", aliases=("champion",)), is_default=True)
        monkeypatch.setattr(registry, "versions", lambda settings: [champion])
        monkeypatch.setattr(registry, "load_placer", lambda name, settings: load())

    return give


def test_torchrecs_planner_says_which_bandwidths_it_assumes(place_tables):
    pytest.importorskip("torchrec")
    for hardware, is_assumed in (((), True), (("--hardware", "h100"), False)):
        done, plan = place_tables(TABLES, *SHAPE, "torchrec_planner_columns", *hardware)
        assert (len(plan["tables"]), "assumes TorchRec's default bandwidths" in done.stderr) == (3, is_assumed)


@pytest.mark.parametrize("placer", ["cost_greedy", "size_greedy", "champion"])
def test_a_damaged_champion_is_said_by_whoever_needs_it(place_tables, with_champion, placer):
    def damaged():
        raise ValueError("version 1 cannot be read")

    with_champion(damaged)
    done, _ = place_tables(TABLES, *SHAPE, placer)
    assert (done.returncode, "version 1 cannot be read" in done.sentence) == (1, True)


@pytest.mark.parametrize("placer", LEARNED)
def test_with_a_champion_placers_place_by_its_predicted_costs(place_tables, with_champion, placer):
    champion = make_placer(start_training(pool_of(8), TrainingConfig(), seed=0))
    with_champion(lambda: champion)
    done, plan = place_tables(TABLES, *SHAPE, placer)
    assert done.returncode == 0, done.sentence
    assert (plan["placer"], plan["tables"].keys()) == (placer, {"users", "items", "words"})
    assert plan["predicted"]["overall_ms"] > 0
