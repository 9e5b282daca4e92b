import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from storage.mlflow_store import registry, runs
from storage.run_records.trainings import in_words
from storage.settings import Settings
from tests.flows.commands import Dreamshard, failed_with

PROJECT = Path(__file__).parents[2]
RUN = ("run", "--recipe", "smoke", "--testbed", "simulated")
OURS, AUTOSHARD = (f"models:/dreamshard.meta-dlrm-2021.simulated-rtx2080ti-x2/{number}" for number in (1, 2))


@pytest.fixture(scope="module")
def said(finished: Path, in_json):
    return partial(in_json, home=finished)


@pytest.fixture(scope="module")
def settings(finished: Path) -> Settings:
    return Settings.from_environment({"DREAMSHARD_HOME": str(finished)})


def test_every_evaluated_placement_has_its_sample(said):
    rows = said(
        "sql",
        "select e.placer, e.overall_ms, s.overall_ms as sample_ms, s.clock, s.iteration from evaluations e "
        "left join cost_samples s on s.run_key = e.run_key and s.task = e.task and s.placement = e.placement "
        "and s.table_names = e.table_names",
    )
    assert len(rows) >= 4 * 7  # tasks x placers
    for row in rows:
        assert row["sample_ms"] == pytest.approx(row["overall_ms"]), row
        assert (row["clock"], row["iteration"]) == ("model", 0)


COSTS = """
    select count_if(origin = 'measured') as measured, count_if(origin = 'estimated') as estimated,
        count(distinct table_name) as names, (select any_value(tables) from versions) as tables,
        count_if(error > 0) as errors, count_if(model_version = 1) as of_version from table_costs where is_current
"""


def test_questions_of_the_pages_are_answered_after_a_run(said):
    pages = "".join((PROJECT / page).read_text() for page in ("README.md", "docs/catalog.md"))
    questions = re.findall(r'dreamshard sql "(select [^"]+)"', pages)
    tables, placers, versions = (
        said("sql", next(question for question in questions if f"from {view}" in question))
        for view in ("table_costs", "evaluations where", "versions order")
    )
    assert [row["compute_ms"] for row in tables] == sorted((row["compute_ms"] for row in tables), reverse=True)
    assert {row["legal"] for row in placers} == {True}
    assert [row["version"] for row in versions] == [1]
    (counts,) = said("sql", COSTS)
    assert counts["measured"] > 0
    assert counts["estimated"] > 0
    assert counts["measured"] + counts["estimated"] == counts["names"] == counts["tables"]
    assert counts["of_version"] == counts["errors"] == counts["estimated"]


def test_the_example_draws_its_figures(finished: Path, tmp_path: Path):
    environment = os.environ | {"DREAMSHARD_HOME": str(finished), "FIGURES": str(tmp_path), "PYTHONPATH": str(PROJECT)}
    example = str(PROJECT / "docs/examples/look_at_costs.py")
    shown = "print('drawn:', drawn['task'], len(drawn['most']), drawn['compared']['model'].nunique())"
    command = [sys.executable, "-c", f"import runpy; drawn = runpy.run_path({example!r}); {shown}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.png"))) == 4
    assert "1 versions; the newest is 1, of meta-dlrm-2021 on simulated" in done.stdout
    assert "drawn: test-000 15 1" in done.stdout, "a held-out task, tables, and one line of gains"


PAGES_CODE = """
import pathlib, re, sys
from dreamshard import read_tables
from dreamshard.testbeds import TestbedSetup
ran, absent = 0, ("/data/models", "(model, plan=plan", "(model, batches", ", model)")  # a team's; a model to train
for page in sys.argv[1:]:
    setup = TestbedSetup(num_devices=4, batch_size=512, lookups=None)
    names = {"tables": read_tables("tables.csv"), "setup": setup, "__name__": "page"}  # a page's blocks share them
    for block in re.findall(r"^```python\\n(.*?)^```", pathlib.Path(page).read_text(), re.M | re.S):
        if not any(each in block for each in absent):
            exec(block, names)
            ran += 1
print("ran", ran)
"""


def test_python_of_readme_and_docs_runs(finished: Path, said, tmp_path: Path):
    pytest.importorskip("torchrec")
    said("promote", OURS)
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\na,9000,16,2\nb,80,32,1\nc,700,64,9\n")
    (tmp_path / ".dreamshard").symlink_to(finished)
    pages = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    command = [sys.executable, "-c", PAGES_CODE, *map(str, pages)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 9, "most blocks of the pages"


def test_a_versions_run_has_curves_and_a_child_per_stage(settings: Settings, said):
    tracking, (version,) = runs.client(settings), said("models")
    wanted = {"measured_cost_ms", "cost_loss", "policy_reward", "policy_entropy"}
    wanted |= {"cost_ms", "prediction_error_pct", "gain_over_best_heuristic_pct", "gain_over_best_heuristic_pct_low"}
    assert wanted <= set(version)
    run = version["mlflow_run"]
    curve = tracking.get_metric_history(run, "measured_cost_ms")
    assert [point.step for point in curve] == [1, 2]
    recorded = tracking.get_run(run)
    data, datasets = recorded.data, recorded.inputs.dataset_inputs
    limits = (data.metrics, data.params, version_tags(tracking, version), datasets)
    assert [len(limit) <= 12 for limit in limits] == [True] * 4, [len(limit) for limit in limits] + sorted(limits[2])
    assert {dataset.dataset.name for dataset in datasets} == {"meta-dlrm-2021", "tasks"}
    children = tracking.search_runs([recorded.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run}'")
    by_name = {child.info.run_name: child.info.run_id for child in children}
    assert by_name.keys() == {"ingest", "train", "evaluate", "promote", "plan"}
    of_train = tracking.get_metric_history(by_name["train"], "measured_cost_ms")
    assert [point.value for point in of_train] == [point.value for point in curve]


def version_tags(tracking, version: dict) -> dict[str, str]:
    return tracking.get_model_version(version["registered_model"], str(version["version"])).tags


@pytest.fixture(scope="module")
def outcome(finished: Path, said) -> dict:
    """The outcome of training AutoShard, in a home with a version of dreamshard, which is champion."""
    said("promote", OURS)
    return said(*RUN, "--algorithm", "autoshard")


def test_algorithms_compete_for_one_champion(outcome: dict, settings: Settings, said):
    assert outcome["version"] == AUTOSHARD
    report = json.loads(Path(outcome["where"]["evaluation"]).read_text())
    placers = {row["placer"]: row for row in report["placers"]}
    assert {"autoshard", "champion 1", "random"} <= placers.keys()
    assert "cost_greedy" not in placers, "AutoShard predicts no costs to be greedy on"
    assert placers["autoshard"]["predicted_ms"].keys() == {"champion 1"}, "AutoShard predicts no cost of a step"
    assert registry.champion(settings).uri == OURS
    assert [(row["algorithm"], row["version"]) for row in said("models")] == [("autoshard", 2), ("dreamshard", 1)]


def test_a_plan_is_by_the_version_that_is_named(outcome, finished: Path, shared_dreamshard: Dreamshard):
    rows = [f"t{number:02},{1000 * number},16,{number % 7 + 1}" for number in range(1, 25)]
    (finished / "tables.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *rows]) + "\n")
    words = ("place", f"{finished}/tables.csv", "--devices", "2", "--memory-gb", "1", "--placer")
    for placer, uri in {"champion": OURS, AUTOSHARD: AUTOSHARD}.items():
        done = shared_dreamshard(*words, placer, home=finished)
        assert done.returncode == 0, done.sentence
        assert json.loads(done.stdout)["placer"] == in_words(uri)
        assert (f"predicts no cost of a step; {in_words(OURS)} does" in done.notes) == (placer == AUTOSHARD)
        assert ("no champion is of this model, so" in done.notes) == (placer == "champion")
    failed_with(shared_dreamshard(*words, f"{AUTOSHARD}7", home=finished), "27", AUTOSHARD)


def test_versions_of_several_algorithms_are_compared(outcome, said):
    errors = {row["placer"]: row["prediction error"] for row in said("compare", "2", "1", "lookup_greedy")["table"]}
    assert errors.keys() == {"version 2", "version 1", "lookup_greedy"}
    assert errors["version 2"] == "-"
