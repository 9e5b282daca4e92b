"""One's own model, as its owner trains it and again after its tables changed: claims about that list, and two versions."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from storage.mlflow_store import registry, runs
from storage.settings import Settings
from storage.store import Store
from tests.flows.commands import Dreamshard, failed_with

OPTIONS = ("--recipe", "smoke", "--testbed", "simulated:a100", "--iterations", "3")
TABLES = {f"t{i}": ((1000, 20_000, 300_000)[i % 3], (8, 16, 32, 64)[i % 4], 1 + i % 7) for i in range(26)}


def write_list(path: Path, tables: dict[str, tuple[int, int, int]]) -> str:
    lines = [",".join(map(str, [name, *sizes])) for name, sizes in tables.items()]
    path.write_text("\n".join(["name,rows,dim,pooling_factor", *lines]) + "\n")
    return str(path)


def run(dreamshard: Dreamshard, home: Path, *options: str) -> dict[str, Any]:
    """Outcome of the whole chain, with its report."""
    done = dreamshard("run", *OPTIONS, *options, "--json", home=home)
    assert done.returncode == 0, done.sentence
    outcome = json.loads(done.stdout)
    return outcome | {"report": json.loads(Path(outcome["where"]["evaluation"]).read_text())}


def query(dreamshard: Dreamshard, home: Path, sql: str) -> list[dict[str, Any]]:
    return json.loads(dreamshard("sql", sql, "--json", home=home).stdout)


CHANGED = {name: (rows, dim, 2 * pooling) for name, (rows, dim, pooling) in TABLES.items() if name != "t3"}
CHANGED["new"] = (5000, 16, 3)
PLACE = ("--devices", "4", "--memory-gb", "70", "--placer", "dim_greedy", "--out")


@dataclass(frozen=True)
class Model:
    """A list of 26 tables that was trained on, made champion, changed, and trained on again.

    Attributes:
        home: its home; `model.csv` and the plan in use, `plan.json`, are in it.
        first: outcome of the first run, with its report.
        second: outcome of the second.
        retraining: whether one was due, according to `watch`, before and after the change.
    """

    home: Path
    first: dict[str, Any]
    second: dict[str, Any]
    retraining: list[str]

    @property
    def settings(self) -> Settings:
        return Settings.from_environment({"DREAMSHARD_HOME": str(self.home)})


@pytest.fixture(scope="module")
def model(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Model:
    home = tmp_path_factory.mktemp("own") / "home"
    home.mkdir()
    source, plan = write_list(home / "model.csv", TABLES), str(home / "plan.json")
    placed = shared_dreamshard("place", source, *PLACE, plan, home=home)
    assert placed.returncode == 0, placed.sentence
    options = ("--source", source, "--devices", "4")

    def watched() -> str:
        done = shared_dreamshard("watch", *OPTIONS[:4], *options, "--json", home=home)
        assert done.returncode == 0, done.sentence
        return str(json.loads(done.stdout)["retraining"])

    first = run(shared_dreamshard, home, *options, "--current", plan)
    assert shared_dreamshard("promote", first["version"], home=home).returncode == 0
    retraining = [watched()]
    write_list(home / "model.csv", CHANGED)
    retraining.append(watched())
    return Model(home, first, run(shared_dreamshard, home, *options), retraining)


def test_all_tables_are_trained_on_and_the_claim_is_about_all_of_them(model: Model, shared_dreamshard):
    report = model.first["report"]
    assert report["model"] == "model"
    gain = report["gains"]["dreamshard"]["random"]
    assert (gain["over"], gain["num_repeats"], gain["num_tasks"]) == ("repeats", 4, 1)
    assert gain["low"] < gain["mean_gain"] < gain["high"]
    assert report["variant_gains"]["dreamshard"]["random"]["over"] == "variants"
    assert {"torchrec_planner", "torchrec_planner_columns", "lookup_greedy", "cost_greedy"} <= {
        line["placer"] for line in report["placers"]
    }
    trained = query(
        shared_dreamshard, model.home,
        "select distinct unnest(table_names) as name from tasks where split = 'train' and task = 'model' "
        f"and dataset_version = '{report['dataset']}'",
    )  # fmt: skip
    assert {row["name"] for row in trained} == set(TABLES)


def test_no_placement_and_no_variant_that_was_trained_on_counts_as_held_out(model: Model, shared_dreamshard):
    of_first = f"where dataset_version = '{model.first['report']['dataset']}'"
    rows = query(shared_dreamshard, model.home, f"select split, task, table_names from tasks {of_first}")
    tables = {
        side: [frozenset(row["table_names"]) for row in rows if row["split"] == side] for side in ("train", "test")
    }
    assert len(set(tables["test"])) == len(tables["test"]) == 4
    assert set(tables["train"]) & set(tables["test"]) == {frozenset(TABLES)}, "only the model itself"
    measured = {(row["placer"], row["task"]) for row in model.first["report"]["rows"]}
    assert 0 < model.first["report"]["heldout_placements"] <= len(measured)


def test_the_drifted_tables_of_variants_are_in_the_lake_with_lookups_but_not_in_the_dataset(model: Model):
    lake = Store(model.settings).lake
    dataset = model.first["report"]["dataset"]
    assert set(lake.read_dataset(dataset).names) == set(TABLES)
    drifted = [name for name in lake.read_pool(dataset).names if name not in TABLES]
    assert len(drifted) > 20
    lookups = lake.lookup_source(dataset)
    assert all(lookups(name).batch_size == 512 for name in drifted[:3])


def test_the_plan_in_use_is_measured_beside_the_new_placement(model: Model, shared_dreamshard):
    report, plan = model.first["report"], model.home / "plan.json"
    gains = report["gains"]["dreamshard"]
    assert gains["current plan"]["mean_gain"] == pytest.approx(gains["dim_greedy"]["mean_gain"])
    assert report["gains"]["current plan"]["dim_greedy"]["is_same_placement"]
    content = json.loads(plan.read_text())
    plan.write_text(json.dumps(content | {"tables": dict(list(content["tables"].items())[1:])}))
    options = ("--source", str(model.home / "model.csv"), "--devices", "4", "--current", str(plan))
    failed_with(shared_dreamshard("run", *OPTIONS, *options, home=model.home), "give the plan in use")


def test_a_model_that_drifted_is_trained_on_from_its_champion_and_both_are_compared(model: Model, shared_dreamshard):
    assert "Nothing needs" in model.retraining[0]
    assert "Retraining is due" in model.retraining[1]
    assert model.second["report"]["rival"] == model.first["version"]
    assert model.second["report"]["caveat"] == "", "both were trained on the model's tables, as they should be"
    assert "version 1: " in model.second["effort"]
    compare = ("compare", "1", "2", "dim_greedy", *OPTIONS[:4], "--devices", "4", "--json")
    compared = shared_dreamshard(*compare, home=model.home)
    assert compared.returncode == 0, compared.sentence
    said = json.loads(compared.stdout)
    assert "no table is held out" in said["held_out"]
    assert "interleaved repeats" in said["title"]


@pytest.fixture
def tracking(model: Model) -> MlflowClient:
    return runs.client(model.settings)


def test_versions_and_their_runs_are_named_for_what_they_are(model: Model, tracking: MlflowClient):
    names = {"1": "v1 model.csv, from nothing", "2": "v2 model.csv +1 -1 ~25, warm from v1"}
    for version, name in names.items():
        found = registry.find(model.settings, version)
        assert found.tags["name"] == name
        assert found.description.startswith(f"{name}; ")
        assert tracking.get_run(found.run).info.run_name == name


def test_mlflows_comparison_shows_what_differs_and_what_the_versions_are_made_of(model: Model, tracking: MlflowClient):
    """The page that compares versions reads the parameters of their runs."""
    first, second = (tracking.get_run(registry.find(model.settings, version).run) for version in "12")
    differing = {name for name, value in second.data.params.items() if first.data.params.get(name) != value}
    assert differing >= {"table_diff", "warm_from", "dataset"}
    wanted = {"workload.source", "hardware", "tasks.num_devices", "tasks.memory_bytes", "tasks.mode", "iterations"}
    assert wanted <= first.data.params.keys()
    assert (second.data.params["table_diff"], second.data.params["warm_from"]) == ("+1 -1 ~25", "1")
    inputs = {entry.dataset.digest for entry in second.inputs.dataset_inputs}
    tags = registry.find(model.settings, "2").tags
    assert tags["dataset"] in inputs
    assert {name: value for name, value in tags.items() if name.startswith("reference")} == {}, "its own tasks say it"


def test_mlflows_comparison_has_the_cost_of_both_versions_on_the_tasks_of_the_second(
    model: Model, tracking: MlflowClient
):
    first, second = (tracking.get_run(registry.find(model.settings, version).run).data.metrics for version in "12")
    shared = {name for name in first.keys() & second.keys() if name.endswith("/eval_overall_ms")}
    assert len(shared) == 1
    gain = model.second["report"]["gains"]["dreamshard"]["champion 1"]
    assert second["gain_over_champion"] == pytest.approx(gain["mean_gain"])
    assert second["gain_over_champion_low"] == pytest.approx(gain["low"])
    assert "gain_over_champion" not in first
