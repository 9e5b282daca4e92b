"""Another algorithm trained in a home that has a champion: what the commands say, and what stays as it is."""

import json
from pathlib import Path

import pytest

from dreamshard.names import ALGORITHMS
from storage.mlflow_store import champions, registry, runs
from storage.settings import Settings
from tests.flows.commands import Dreamshard, failed_with

pytestmark = pytest.mark.flow

RUN = ("run", "--recipe", "smoke", "--testbed", "simulated", "--iterations", "1", "--mode", "pool", "--json")
PLACE = ("place", "{home}/tables.csv", "--devices", "2", "--memory-gb", "1", "--placer")
TOPOLOGY = "simulated rtx2080ti · 2 devices"


@pytest.fixture(scope="module")
def home(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of every algorithm, each made champion of its own by hand."""
    folder = tmp_path_factory.mktemp("algorithms")
    rows = [f"t{number:02},{1000 * number},16,{number % 7 + 1}" for number in range(1, 25)]
    (folder / "tables.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *rows]) + "\n")
    for algorithm in ALGORITHMS:
        chosen = ("--source", str(folder / "tables.csv"), "--algorithm", algorithm)
        done = shared_dreamshard(*RUN, *chosen, home=folder)
        assert done.returncode == 0, done.sentence
        (folder / f"{algorithm}.json").write_text(done.stdout)
    for version in ("1", "paper:1", "autoshard:1"):
        done = shared_dreamshard("promote", version, home=folder)
        assert done.returncode == 0, done.sentence
    return folder


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings.from_environment({"DREAMSHARD_HOME": str(home)})


@pytest.mark.parametrize("algorithm", ["paper", "autoshard"])
def test_a_training_meets_the_champions_of_its_own_algorithm_only(home: Path, algorithm: str):
    outcome = json.loads((home / f"{algorithm}.json").read_text())
    assert outcome["version"] == f"{algorithm}:1"
    assert f"compared with champions of {algorithm} only" in outcome["note"]
    placers = {row["placer"]: row for row in outcome["summary"]}
    assert {algorithm, "random"} <= placers.keys()
    assert not [name for name in placers if name.startswith("champion")], "version 1 is not one of this algorithm"
    predicted = [row["predicted_ms"] for row in placers.values()]
    assert (None in predicted) == (algorithm == "autoshard"), "AutoShard predicts no cost of a step"


def test_each_algorithm_has_its_champion(home: Path, settings: Settings, shared_dreamshard: Dreamshard):
    assert champions.champions(settings) == {TOPOLOGY: "1"}
    assert champions.champions(settings.of("paper")) == {TOPOLOGY: "paper:1"}
    tags = registry.version_tags(settings, "paper")
    assert (tags["algorithm"], tags["name"]) == ("paper", "paper v1 tables.csv, from nothing")
    run = runs.client(settings).get_run(registry.run_of(settings, "paper:1")).data
    assert (run.params["algorithm"], run.tags["algorithm"]) == ("paper", "paper")
    shown = shared_dreamshard("models", home=home).stdout
    assert f"champion of {TOPOLOGY}: version paper:1 (`paper:champion`: used by `--placer paper`)" in shown
    query = "select algorithm, version from versions order by 1"
    assert json.loads(shared_dreamshard("sql", query, "--json", home=home).stdout) == [
        {"algorithm": "autoshard", "version": 1},
        {"algorithm": "dreamshard", "version": 1},
        {"algorithm": "paper", "version": 1},
    ]


def test_a_plan_is_by_the_algorithm_that_is_named(home: Path, shared_dreamshard: Dreamshard):
    words = [word.format(home=home) for word in PLACE]
    names = {"champion": "dreamshard champion", "paper": "paper champion", "paper:1": "paper 1"}
    for placer, name in {**names, "autoshard": "autoshard champion"}.items():
        done = shared_dreamshard(*words, placer, home=home)
        assert done.returncode == 0, done.sentence
        plan = json.loads(done.stdout)
        assert plan["placer"] == name
        said = "autoshard champion predicts no cost of a step; dreamshard champion does"
        assert (said in done.stderr) == (placer == "autoshard")
        assert {shard["table"] for shard in plan["shards"]} == {f"t{number:02}" for number in range(1, 25)}
    failed_with(shared_dreamshard(*words, "paper:7", home=home), "no version 'paper:7' of dreamshard-paper", "paper:1")


def test_versions_of_several_algorithms_are_compared(home: Path, settings: Settings, shared_dreamshard: Dreamshard):
    done = shared_dreamshard("compare", "autoshard:1", "paper:1", "1", "lookup_greedy", "--json", home=home)
    assert done.returncode == 0, done.sentence
    errors = {row["placer"]: row["prediction error"] for row in json.loads(done.stdout)["table"]}
    assert errors.keys() == {"version autoshard:1", "version paper:1", "version 1", "lookup_greedy"}
    assert errors["version autoshard:1"] == "-"
    query = "select distinct algorithm, model_version from evaluations where placer like 'version%' order by 1"
    assert json.loads(shared_dreamshard("sql", query, "--json", home=home).stdout) == [
        {"algorithm": "autoshard", "model_version": 1},
        {"algorithm": "dreamshard", "model_version": 1},
        {"algorithm": "paper", "model_version": 1},
    ]
    assert registry.aliases(settings) == {"champion": "1"}


def test_a_version_of_one_algorithm_is_not_promoted_as_another(home: Path, shared_dreamshard: Dreamshard):
    done = shared_dreamshard("promote", "1", "--algorithm", "paper", home=home)
    failed_with(done, "version 1 is one of dreamshard, not of paper", "give paper:1")
