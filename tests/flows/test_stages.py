"""A home after a whole run: what its lake, catalog and MLflow hold, and what another run and a comparison add."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.flows.commands import Dreamshard, files

PROJECT = Path(__file__).parents[2]
SMOKE = ("--recipe", "smoke", "--testbed", "simulated")


def test_a_second_run_measures_and_registers_nothing_again(finished: Path, shared_dreamshard: Dreamshard):
    before = files(finished / "lake")
    done = shared_dreamshard("run", *SMOKE, "--json", home=finished)
    assert done.returncode == 0, done.sentence
    assert json.loads(done.stdout)["version"].endswith("/1")
    assert files(finished / "lake") == before


def test_an_iteration_is_one_file_of_the_lake(finished: Path):
    files = [path.name for path in (finished / "lake" / "cost_samples").rglob("*.parquet")]
    found = sorted(name.split(".")[1] for name in files if not name.startswith("reference-"))
    assert found == ["0000", "0001", "0002"]  # what the evaluation measured, and two iterations of training
    assert not list((finished / "lake" / "sample_buffer").rglob("*.parquet"))


def test_every_placement_that_was_evaluated_has_its_sample_with_clock_and_spread(
    finished: Path, shared_dreamshard: Dreamshard
):
    query = (
        "select e.placer, e.overall_ms, s.overall_ms as sample_ms, s.clock, s.spread_ms, s.iteration from evaluations e "
        "left join cost_samples s on s.run_key = e.run_key and s.task = e.task and s.placement = e.placement "
        "and s.table_names = e.table_names where e.split = 'heldout'"
    )
    rows = json.loads(shared_dreamshard("sql", query, "--json", home=finished).stdout)
    assert len(rows) >= 4 * 7  # tasks x placers
    for row in rows:
        assert row["sample_ms"] == pytest.approx(row["overall_ms"]), row
        assert (row["clock"], row["iteration"]) == ("model", 0)
        assert row["spread_ms"] is not None


def test_questions_of_readme_and_catalog_are_answered_after_a_run(finished: Path, shared_dreamshard: Dreamshard):
    pages = "".join((PROJECT / page).read_text() for page in ("README.md", "docs/catalog.md"))
    questions = re.findall(r'dreamshard sql "(select [^"]+)"', pages)
    tables, devices, versions = (
        json.loads(shared_dreamshard("sql", question, "--json", home=finished).stdout)
        for view in ("table_costs", "evaluated_devices", "versions order")
        for question in [next(each for each in questions if f"from {view}" in each)]
    )
    assert [row["compute_ms"] for row in tables] == sorted((row["compute_ms"] for row in tables), reverse=True)
    assert len(devices) == 4  # the question's limit
    assert [row["version"] for row in versions] == [1]
    (counts,) = json.loads(shared_dreamshard("sql", COSTS, "--json", home=finished).stdout)
    assert counts["measured"] > 0
    assert counts["estimated"] > 0
    assert counts["measured"] + counts["estimated"] == counts["names"] == counts["tables"]
    assert counts["of_version"] == counts["errors"] == counts["estimated"]


COSTS = """
    select count_if(origin = 'measured') as measured, count_if(origin = 'estimated') as estimated,
        count(distinct table_name) as names, (select any_value(tables) from versions) as tables,
        count_if(error > 0) as errors, count_if(model_version = 1) as of_version from table_costs where is_current
"""


def test_the_candidate_of_an_evaluation_has_the_version_that_it_became(finished: Path, shared_dreamshard: Dreamshard):
    query = (
        "select placer, model_version, count(*) as n from evaluations "
        "where model_version is not null and split = 'heldout' group by all"
    )
    assert json.loads(shared_dreamshard("sql", query, "--json", home=finished).stdout) == [
        {"placer": "dreamshard", "model_version": 1, "n": 4}
    ]
    with duckdb.connect(finished / "catalog.duckdb", read_only=True) as catalog:  # as other tools open it
        assert catalog.sql(query).fetchall() == [("dreamshard", 1, 4)]
        counted = catalog.sql("select count(*) from table_costs where is_current").fetchall()
    assert counted == [(48,)]


def test_the_example_draws_its_figures(finished: Path, tmp_path: Path):
    environment = os.environ | {"DREAMSHARD_HOME": str(finished), "FIGURES": str(tmp_path)}
    environment |= {"PYTHONPATH": str(PROJECT)}
    example = str(PROJECT / "docs/examples/look_at_costs.py")
    shown = "print('drawn:', drawn['task'], len(drawn['most']), drawn['scored']['reference_set'].nunique())"
    command = [sys.executable, "-c", f"import runpy; drawn = runpy.run_path({example!r}); {shown}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.png"))) == 4
    assert "1 versions; the newest is 1, of meta-dlrm-2021 on simulated" in done.stdout
    assert "drawn: test-000 15 1" in done.stdout, "a held-out task, tables, and one line of reference costs"


def test_models_shows_versions_side_by_side_under_the_names_of_the_metrics(
    finished: Path, shared_dreamshard: Dreamshard
):
    (version,) = json.loads(shared_dreamshard("models", "--json", home=finished).stdout)
    assert version["version"] == 1
    wanted = {"measured_cost_ms", "cost_loss", "cost_heldout_mape", "policy_reward", "policy_entropy"}
    wanted |= {"eval_overall_ms", "eval_gain_over_random", "eval_gain_over_best_baseline", "eval_predicted_mape"}
    assert wanted <= set(version)
    assert "version 1" in shared_dreamshard("models", home=finished).stdout


def test_the_run_of_a_version_has_its_training_curves_and_a_child_for_each_stage(finished: Path):
    from storage.mlflow_store import runs, versions
    from storage.settings import Settings

    settings = Settings.from_environment({"DREAMSHARD_HOME": str(finished)})
    tracking = runs.client(settings)
    run = versions.versions(settings)[-1]["mlflow_run"]
    curve = tracking.get_metric_history(run, "measured_cost_ms")
    assert [point.step for point in curve] == [1, 2]
    found = tracking.get_run(run).data
    (of_tasks,) = (name for name in found.metrics if name.startswith("tasks_") and name.endswith("/eval_overall_ms"))
    assert [point.step for point in tracking.get_metric_history(run, of_tasks)] == [0]
    assert "eval_overall_ms" not in found.metrics, "it would stand beside that of versions on other tasks"
    experiment = tracking.get_run(run).info.experiment_id
    children = tracking.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run}'")
    assert {child.info.run_name for child in children} == {"ingest", "train", "evaluate", "promote"}
    train = next(child.info.run_id for child in children if child.info.run_name == "train")
    assert [p.value for p in tracking.get_metric_history(train, "measured_cost_ms")] == [p.value for p in curve]


def test_published_rivals_are_compared_by_name(finished: Path, shared_dreamshard: Dreamshard):
    rivals = ("1", "neuroshard", "torchrec_planner_columns", "lookup_greedy")
    done = shared_dreamshard("compare", *rivals, "--recipe", "smoke", "--testbed", "simulated", "--json", home=finished)
    assert done.returncode == 0, done.sentence
    assert {row["placer"] for row in json.loads(done.stdout)["table"]} == {"version 1", *rivals[1:]}
