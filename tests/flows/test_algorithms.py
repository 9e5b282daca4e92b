"""Another algorithm trained in a home that has a champion: what the commands say, and what stays as it is."""

import json
from pathlib import Path

import pytest

from storage.mlflow_store import registry, runs
from storage.settings import Settings
from storage.version_names import in_words
from tests.flows.commands import Dreamshard, failed_with

RUN = ("run", "--recipe", "smoke", "--testbed", "simulated", "--algorithm", "autoshard", "--json")
PLACE = ("place", "{home}/tables.csv", "--devices", "2", "--memory-gb", "1", "--placer")
OURS, AUTOSHARD = (f"models:/{algorithm}-simulated-rtx2080ti-2/1" for algorithm in ("dreamshard", "autoshard"))


@pytest.fixture(scope="module")
def outcome(finished: Path, shared_dreamshard: Dreamshard) -> dict:
    """What training AutoShard says, in a home with a version of dreamshard; each is made champion by hand."""
    rows = [f"t{number:02},{1000 * number},16,{number % 7 + 1}" for number in range(1, 25)]
    (finished / "tables.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *rows]) + "\n")
    trained = shared_dreamshard(*RUN, home=finished)
    assert trained.returncode == 0, trained.sentence
    for version in (OURS, AUTOSHARD):
        shared_dreamshard("promote", version, home=finished)
    return json.loads(trained.stdout)


@pytest.fixture
def home(finished: Path, outcome: dict) -> Path:
    return finished


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings.from_environment({"DREAMSHARD_HOME": str(home)})


def test_a_training_meets_the_champions_of_its_own_algorithm_only(outcome: dict):
    assert outcome["version"] == AUTOSHARD
    assert "compared with champions of autoshard only" in outcome["note"]
    report = json.loads(Path(outcome["where"]["evaluation"]).read_text())
    placers = {row["placer"]: row for row in report["placers"]}
    assert {"autoshard", "random"} <= placers.keys()
    assert not [name for name in placers if name.startswith("champion")], "version 1 is not one of this algorithm"
    assert None in [row["predicted_ms"] for row in placers.values()], "AutoShard predicts no cost of a step"


def test_each_algorithm_has_its_champion(home: Path, settings: Settings, shared_dreamshard: Dreamshard):
    assert registry.champion(settings).uri == OURS
    assert registry.champion(settings.of("autoshard")).uri == AUTOSHARD
    assert registry.find(settings, AUTOSHARD).tags["name"] == "v1 meta-dlrm-2021, from nothing"
    assert (
        runs.client(settings).get_run(registry.find(settings, AUTOSHARD).run).data.params["training.algorithm"]
        == "autoshard"
    )
    shown = shared_dreamshard("models", home=home).stdout
    assert "autoshard-simulated-rtx2080ti-2 version 1 (`champion` with --algorithm autoshard)" in shown
    query = "select algorithm, version from versions order by 1"
    assert json.loads(shared_dreamshard("sql", query, "--json", home=home).stdout) == [
        {"algorithm": "autoshard", "version": 1},
        {"algorithm": "dreamshard", "version": 1},
    ]


def test_a_plan_is_by_the_algorithm_that_is_named(home: Path, shared_dreamshard: Dreamshard):
    words = [word.format(home=home) for word in PLACE]
    names = {"champion": "champion", AUTOSHARD: "autoshard-simulated-rtx2080ti-2 version 1"}
    for placer, name in names.items():
        done = shared_dreamshard(*words, placer, home=home)
        assert done.returncode == 0, done.sentence
        plan = json.loads(done.stdout)
        assert plan["placer"] == name
        assert ("predicts no cost of a step; champion does" in done.stderr) == (placer == AUTOSHARD)
        assert plan["tables"].keys() == {f"t{number:02}" for number in range(1, 25)}
    failed_with(shared_dreamshard(*words, f"{AUTOSHARD}7", home=home), "17", AUTOSHARD)


def test_versions_of_several_algorithms_are_compared(home: Path, settings: Settings, shared_dreamshard: Dreamshard):
    done = shared_dreamshard("compare", AUTOSHARD, "1", "lookup_greedy", "--json", home=home)
    assert done.returncode == 0, done.sentence
    errors = {row["placer"]: row["prediction error"] for row in json.loads(done.stdout)["table"]}
    assert errors.keys() == {in_words(AUTOSHARD), in_words(OURS), "lookup_greedy"}
    assert errors[in_words(AUTOSHARD)] == "-"
    query = "select distinct model, model_version from evaluations where placer like '%version 1' order by 1"
    assert json.loads(shared_dreamshard("sql", query, "--json", home=home).stdout) == [
        {"model": "autoshard-simulated-rtx2080ti-2", "model_version": 1},
        {"model": "dreamshard-simulated-rtx2080ti-2", "model_version": 1},
    ]
    assert registry.champion(settings).uri == OURS
