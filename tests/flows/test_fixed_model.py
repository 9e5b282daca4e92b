import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from dreamshard.search.packing import HEURISTICS
from storage.mlflow_store import registry, runs
from storage.mlflow_store.registry import Version
from storage.store import Store
from tests.flows.commands import Dreamshard, failed_with, files

OPTIONS = ("--recipe", "smoke", "--testbed", "simulated:a100", "--iterations", "3")
TABLES = {f"t{i}": ((1000, 20_000, 300_000)[i % 3], (8, 16, 32, 64)[i % 4], 1 + i % 7) for i in range(26)}


def write_list(path: Path, tables: dict[str, tuple[int, int, int]]) -> str:
    lines = [",".join(map(str, [name, *sizes])) for name, sizes in tables.items()]
    path.write_text("\n".join(["name,rows,dim,pooling_factor", *lines]) + "\n")
    return str(path)


CHANGED = {name: (rows, dim, 2 * pooling) for name, (rows, dim, pooling) in TABLES.items() if name != "t3"}
CHANGED["new"] = (5000, 16, 3)


class Model:
    """A list of 26 tables that was trained on, made champion, changed, and trained on again: outcomes with reports."""

    def __init__(self, home: Path, dreamshard: Dreamshard):
        self.home, self.dreamshard = home, dreamshard
        self.store = Store.from_environment({"DREAMSHARD_HOME": str(home)})
        source, plan = write_list(home / "model.csv", TABLES), str(home / "plan.json")
        self.said("place", source, "--devices", "4", "--memory-gb", "70", "--placer", "dim_greedy", "--out", plan)
        self.options = ("--source", source, "--devices", "4")
        watched = ("watch", *OPTIONS[:4], *self.options, "--json")
        self.first = self.run("--current", plan)
        self.said("promote", self.first["version"])
        self.retraining = [self.said(*watched)["retraining"]]  # as `watch` says it, before and after the change
        write_list(home / "model.csv", CHANGED)
        self.retraining.append(self.said(*watched)["retraining"])
        self.other_types = str(home / "other_types.json")
        types = ("--sharding", "row_wise,data_parallel", "--hardware", "a100")
        self.said("place", source, "--devices", "4", *types, "--placer", "prior", "--out", self.other_types)
        self.second = self.run("--current", self.other_types)

    def said(self, *words: str) -> Any:
        done = self.dreamshard(*words, home=self.home)
        assert done.returncode == 0, done.sentence
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def run(self, *options: str) -> dict[str, Any]:
        """Outcome of the whole chain, with its report."""
        outcome = self.said("run", *OPTIONS, *self.options, *options, "--json")
        return outcome | {"report": json.loads(Path(outcome["where"]["evaluation"]).read_text())}


@pytest.fixture(scope="module")
def model(shared_dreamshard: Dreamshard, mlflow_home: Callable[[], Path]) -> Model:
    return Model(mlflow_home(), shared_dreamshard)


def test_all_tables_are_trained_on_and_claimed(model: Model):
    report = model.first["report"]
    assert report["model"] == "model"
    gain = report["gains"]["dreamshard"]["random"]
    assert (gain["over"], gain["num_tasks"]) == ("variants", 4)
    assert gain["low"] < gain["mean_gain"] < gain["high"]
    assert {"torchrec_planner", "torchrec_planner_columns", "lookup_greedy", "cost_greedy"} <= {
        line["placer"] for line in report["placers"]
    }
    trained, heldout = (
        model.store.lake.read_tasks(report["dataset"], side, report["tasks"]) for side in ("train", "test")
    )
    assert {*trained[0].tables.names} == {*heldout[0].tables.names} == set(TABLES)
    sets = [[frozenset(task.tables.names) for task in tasks] for tasks in (trained, heldout)]
    assert len(set(sets[1])) == len(sets[1]) == 4
    assert set(sets[0]) & set(sets[1]) == {frozenset(TABLES)}, "no variant is both trained on and held out"
    assert report["heldout_placements"] > 0


def test_the_best_heuristic_is_that_of_all_tasks(model: Model):
    report = model.second["report"]
    asked = f"select placer, avg(overall_ms) as ms from evaluations where run_key = '{report['key']}' group by placer"
    costs_ms = {row["placer"]: row["ms"] for row in model.said("sql", asked, "--json")}
    assert report["reference"] == min(HEURISTICS, key=costs_ms.__getitem__), "of the model alone it is another"


def test_a_simulated_testbed_needs_statistics_alone(model: Model):
    assert not (model.home / "lake" / "lookups").exists()


def test_place_prices_the_model_as_its_evaluation_did(model: Model):
    done = model.dreamshard("place", str(model.home / "model.csv"), "--placer", "2", home=model.home)
    assert "bins, lookups, unique_rows of 26 of 26 tables are from dataset" in done.notes
    asked = (
        "select predicted_ms from evaluations where placer = 'dreamshard' and task = 'model' order by created_at desc"
    )
    predicted = model.said("sql", asked, "--json")[0]["predicted_ms"]
    assert json.loads(done.stdout)["predicted"]["overall_ms"] == pytest.approx(predicted, rel=0.01)


def test_the_current_plan_is_measured_beside_the_new_placement(model: Model):
    report, plan = model.first["report"], model.home / "plan.json"
    gains = report["gains"]["dreamshard"]
    assert gains["current plan"]["num_tasks"] == 4
    costs = {line["placer"]: line["overall_ms"] for line in report["placers"]}
    assert costs["current plan"] == pytest.approx(costs["dim_greedy"]), "of the model, whose plan it is"
    content = json.loads(plan.read_text())
    plan.write_text(json.dumps(content | {"tables": dict(list(content["tables"].items())[1:])}))
    done = model.dreamshard("run", *OPTIONS, *model.options, "--current", str(plan), home=model.home)
    failed_with(done, "give the plan of this model")


@pytest.mark.parametrize("options", ["4 absent.json", "4 plan.json --mode pool", "5 other_types.json"])
def test_a_wrong_current_plan_fails_before_anything_is_measured(model: Model, options, mlflow_home):
    home, (devices, plan, *mode) = mlflow_home(), options.split()
    wrong = ("--devices", devices, "--current", str(model.home / plan), *mode)
    done = model.dreamshard("run", *OPTIONS, *model.options[:2], *wrong, home=home)
    failed_with(done, "plan")
    assert not [*(home / "lake").rglob("cost_samples")]


def test_a_current_plan_of_any_sharding_type_is_measured(model: Model):
    types = {table["sharding_type"] for table in json.loads(Path(model.other_types).read_text())["tables"].values()}
    assert types <= {"row_wise", "data_parallel"}
    (held,) = (line for line in model.second["report"]["placers"] if line["placer"] == "current plan")
    assert held["is_split"]
    assert model.second["report"]["gains"]["dreamshard"]["current plan"]["mean_gain"] > 0
    query = "select max(num_tables) as n from evaluated_devices where placer = 'current plan' and task = 'model'"
    assert model.said("sql", query, "--json")[0]["n"] >= len(CHANGED)


def test_a_drifted_model_is_trained_on_from_its_champion(model: Model):
    assert "Nothing needs" in model.retraining[0]
    assert "Retraining is due" in model.retraining[1]
    assert model.second["report"]["rival"] == model.first["version"]
    assert model.second["report"]["caveat"] == "", "both were trained on the model's tables, as they should be"
    assert "version 1: " in model.second["effort"]
    compared = model.said("compare", "1", "2", "dim_greedy", "--json")
    assert "none is held out" in compared["held_out"]
    assert "variants" in compared["title"]


def test_the_same_command_measures_and_registers_nothing_again(model: Model):
    before = files(model.home / "lake")
    assert model.run("--current", model.other_types)["version"] == model.second["version"]
    assert files(model.home / "lake") == before


@pytest.fixture(scope="module")
def tracked(model: Model) -> list[tuple[Version, Run]]:
    """Both versions with their runs in MLflow."""
    versions = [registry.find(model.store, number) for number in "12"]
    return [(version, runs.client(model.store).get_run(version.run)) for version in versions]


def test_mlflow_shows_differences_and_origins_of_versions(tracked):
    """The page that compares versions reads the parameters of their runs."""
    names = ("v1 model.csv, from scratch", "v2 model.csv +1 -1 ~25, warm from v1")
    for name, (version, run) in zip(names, tracked, strict=True):
        assert (version.name, run.info.run_name) == (name, name)
        assert version.report.startswith(f"**{name}; ")
    (_, one), (version, two) = tracked
    first, second = one.data.params, two.data.params
    assert {name for name, value in second.items() if first.get(name) != value} >= {
        "table_diff",
        "warm_from",
        "dataset_version",
    }
    wanted = {"source", "hardware", "devices", "memory_gb", "tables", "iterations"}
    assert wanted <= first.keys()
    assert (second["table_diff"], second["warm_from"]) == ("+1 -1 ~25", "1")


def test_mlflow_compares_both_versions_on_the_seconds_tasks(model: Model, tracked):
    first, second = (run.data.metrics for _, run in tracked)
    assert {"cost_ms", "gain_over_best_heuristic_pct"} <= first.keys() & second.keys()
    gain = model.second["report"]["gains"]["dreamshard"]["champion 1"]
    assert second["gain_over_champion_pct"] == pytest.approx(100 * gain["mean_gain"])
    assert second["gain_over_champion_pct_low"] == pytest.approx(100 * gain["low"])
    assert "gain_over_champion_pct" not in first
