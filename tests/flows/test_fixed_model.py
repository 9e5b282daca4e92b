"""One's own model, as its owner trains it: the whole list is learnt, and the claim is about that list."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.commands import Dreamshard, failed_with

pytestmark = pytest.mark.flow

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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def first(home: Path, shared_dreamshard: Dreamshard) -> dict[str, Any]:
    """A list of 26 tables, trained on for the first time."""
    source = write_list(home / "model.csv", TABLES)
    return run(shared_dreamshard, home / "home", "--source", source, "--devices", "4")


def test_all_tables_are_trained_on_and_the_claim_is_about_all_of_them(first, home, shared_dreamshard):
    report = first["report"]
    assert report["model"] == "model"
    gain = report["gains"]["dreamshard"]["random"]
    assert (gain["over"], gain["num_repeats"], gain["num_tasks"]) == ("repeats", 4, 1)
    assert gain["low"] < gain["mean_gain"] < gain["high"]
    assert report["variant_gains"]["dreamshard"]["random"]["over"] == "variants"
    assert {"torchrec_planner", "torchrec_planner_columns", "lookup_greedy", "cost_greedy"} <= {
        line["placer"] for line in report["placers"]
    }
    trained = query(
        shared_dreamshard, home / "home",
        "select distinct unnest(table_names) as name from tasks where split = 'train' and task = 'model'",
    )  # fmt: skip
    assert {row["name"] for row in trained} == set(TABLES)


def test_no_placement_and_no_variant_that_was_trained_on_counts_as_held_out(first, home, shared_dreamshard):
    rows = query(shared_dreamshard, home / "home", "select split, task, table_names from tasks")
    tables = {
        side: [frozenset(row["table_names"]) for row in rows if row["split"] == side] for side in ("train", "test")
    }
    assert len(set(tables["test"])) == len(tables["test"]) == 4
    assert set(tables["train"]) & set(tables["test"]) == {frozenset(TABLES)}, "only the model itself"
    measured = {(row["placer"], row["task"]) for row in first["report"]["rows"]}
    assert 0 < first["report"]["heldout_placements"] <= len(measured)


def test_the_drifted_tables_of_variants_are_in_the_lake_with_lookups_but_not_in_the_dataset(first, home):
    from storage.settings import Settings
    from storage.store import open_store

    lake = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home / "home")})).lake
    dataset = first["report"]["dataset"]
    assert set(lake.read_dataset(dataset).names) == set(TABLES)
    drifted = [name for name in lake.read_pool(dataset).names if name not in TABLES]
    assert len(drifted) > 20
    lookups = lake.lookup_source(dataset)
    assert all(lookups(name).batch_size == 512 for name in drifted[:3])


def test_what_was_chosen_is_said_first_and_kept_as_parameters_of_the_run(first, home, dreamshard):
    from storage.mlflow_store import runs, versions
    from storage.settings import Settings

    done = dreamshard("train", *OPTIONS[:4], "--devices", "4", home=home / "home")
    assert done.returncode == 0, done.sentence
    assert "learning a fixed model (26 tables are fewer than two tasks' worth)" in done.stderr
    assert "4 devices of 70 GiB (derived), 26 tables (all of them), batches of 512 samples" in done.stderr
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(home / "home")})
    params = runs.client(settings).get_run(versions.versions(settings)[-1]["run"]).data.params
    chosen = {name: params[f"tasks.{name}"] for name in ("mode", "tables_per_task", "memory_bytes")}
    assert chosen == {"mode": "fixed", "tables_per_task": "26", "memory_bytes": str(70 * 2**30)}
    assert params["workload.batch_size"] == "512"


def test_the_next_command_places_the_list_that_was_learnt(first, home, shared_dreamshard):
    source = home / "model.csv"
    done = shared_dreamshard("run", *OPTIONS, "--source", str(source), "--devices", "4", home=home / "home")
    assert done.returncode == 0, done.sentence
    assert "model.csv --devices 4 --memory-gb 70" in done.stdout.partition("Next:")[2]


def test_the_plan_in_use_is_measured_beside_the_new_placement(first, home, shared_dreamshard):
    plan = home / "PLAN.json"
    placed = shared_dreamshard(
        "place", str(home / "model.csv"), "--devices", "4", "--memory-gb", "70", "--placer", "dim_greedy",
        "--out", str(plan), home=home / "home",
    )  # fmt: skip
    assert placed.returncode == 0, placed.sentence
    report = run(
        shared_dreamshard, home / "home", "--source", str(home / "model.csv"), "--devices", "4", "--current", str(plan)
    )["report"]
    gains = report["gains"]["dreamshard"]
    assert gains["current plan"]["mean_gain"] == pytest.approx(gains["dim_greedy"]["mean_gain"])
    assert report["gains"]["current plan"]["dim_greedy"]["is_same_placement"]
    content = json.loads(plan.read_text())
    plan.write_text(json.dumps(content | {"shards": content["shards"][1:]}))
    options = ("--source", str(home / "model.csv"), "--devices", "4", "--current", str(plan))
    failed_with(shared_dreamshard("run", *OPTIONS, *options, home=home / "home"), "not a plan of this model")


def test_a_model_that_drifted_is_trained_on_from_its_champion_and_both_are_compared(first, home, shared_dreamshard):
    folder = home / "drifting"
    folder.mkdir()
    source = write_list(folder / "model.csv", TABLES)
    options = ("--source", source, "--devices", "4")
    one = run(shared_dreamshard, folder / "home", *options)
    settled = shared_dreamshard("promote", one["version"], home=folder / "home")
    assert settled.returncode == 0, settled.sentence
    watch = ("watch", *OPTIONS[:4], *options, "--json")
    assert "Nothing needs" in json.loads(shared_dreamshard(*watch, home=folder / "home").stdout)["retraining"]
    drifted = {name: (rows, dim, 2 * pooling) for name, (rows, dim, pooling) in TABLES.items() if name != "t3"}
    write_list(folder / "model.csv", drifted | {"new": (5000, 16, 3)})
    assert "Retraining is due" in json.loads(shared_dreamshard(*watch, home=folder / "home").stdout)["retraining"]
    two = run(shared_dreamshard, folder / "home", *options)
    assert two["report"]["rival"] == one["version"]
    assert two["report"]["caveat"] == "", "both were trained on the model's tables, as they should be"
    assert "warm from version 1" in two["effort"]
    compared = shared_dreamshard(
        "compare",
        one["version"],
        two["version"],
        "dim_greedy",
        *OPTIONS[:4],
        "--devices",
        "4",
        "--json",
        home=folder / "home",
    )
    assert compared.returncode == 0, compared.sentence
    said = json.loads(compared.stdout)
    assert "no table is held out" in said["held_out"]
    assert "interleaved repeats" in said["title"]


@pytest.mark.parametrize(
    ("source", "devices", "tables"), [("five", "2", 5), ("mlperf-dlrm-dcnv2", "8", 26), ("criteo-kaggle", "4", 26)]
)
def test_a_list_of_any_size_can_be_learnt(source, devices, tables, dreamshard, tmp_path):
    if source == "five":
        source = write_list(tmp_path / "five.csv", dict(list(TABLES.items())[:5]))
    outcome = run(dreamshard, tmp_path / "home", "--source", source, "--devices", devices)
    assert outcome["report"]["model"] == "model"
    rows = query(dreamshard, tmp_path / "home", "select num_tables from tasks where task = 'model' and split = 'test'")
    assert [row["num_tables"] for row in rows] == [tables]


def test_a_table_larger_than_a_device_is_learnt_as_column_shards(dreamshard, tmp_path):
    tables = dict(list(TABLES.items())[:8]) | {"huge": (4_000_000, 64, 3)}  # 0.95 GiB
    source = write_list(tmp_path / "huge.csv", tables)
    outcome = run(dreamshard, tmp_path / "home", "--source", source, "--devices", "4", "--memory-gb", "0.6")
    rows = query(dreamshard, tmp_path / "home", "select table_names from tasks where task = 'model' and split = 'test'")
    assert {"huge[0:32]", "huge[32:64]"} <= set(rows[0]["table_names"])
    assert outcome["report"]["placers"][-1]["overall_ms"] > 0


def test_held_out_tasks_of_a_pool_that_are_the_same_make_no_interval(dreamshard, tmp_path):
    source = write_list(tmp_path / "model.csv", TABLES)
    outcome = run(dreamshard, tmp_path / "home", "--source", source, "--mode", "pool", "--tables-per-task", "13")
    gain = outcome["report"]["gains"]["dreamshard"]["random"]
    assert (gain["over"], gain["num_tasks"], gain["low"]) == ("tasks", 1, None)
    assert "only 1 distinct held-out tasks" in outcome["report"]["caveat"]
