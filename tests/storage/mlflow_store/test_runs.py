import json
import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from storage.mlflow_store import EXPERIMENT, runs
from storage.settings import Settings


def statuses(settings: Settings) -> dict[str, str]:
    tracking = runs.client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT).experiment_id
    return {run.info.run_name: run.info.status for run in tracking.search_runs([experiment])}


def test_stages_are_children_of_their_flows_run(mlflow_settings: Settings, tmp_path: Path):
    with runs.open_run(mlflow_settings, "retrain") as parent:
        parent.log_params({"seed": 3})
        with parent.stage("ingest") as child:
            assert statuses(mlflow_settings) == {"retrain": "RUNNING", "ingest": "RUNNING"}
        assert child.data.tags["mlflow.parentRunId"] == parent.id
    assert statuses(mlflow_settings) == {"retrain": "FINISHED", "ingest": "FINISHED"}
    assert parent.data.params == {"seed": "3"}


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        (ValueError("no tables.csv,\n so give another"), "FAILED", "no tables.csv, so give another"),
        (KeyboardInterrupt(), "KILLED", "KeyboardInterrupt"),
    ],
)
def test_a_failed_run_says_why_and_nothing_stays_running(mlflow_settings: Settings, error, status: str, why: str):
    with pytest.raises(type(error)), runs.open_run(mlflow_settings, "retrain") as parent, parent.stage("ingest"):
        raise error
    assert statuses(mlflow_settings) == {"retrain": status, "ingest": status}
    assert parent.data.tags["mlflow.note.content"] == why


def test_a_flow_that_was_killed_goes_on_in_its_runs(mlflow_settings: Settings):
    killed = runs.open_run(mlflow_settings, "retrain", {runs.FLOW_RUN: "its own"})
    parent = killed.__enter__()
    killed_stage = parent.stage("train")
    child = killed_stage.__enter__()
    with runs.open_run(mlflow_settings, "retrain", {runs.FLOW_RUN: "its own"}) as again, again.stage("train") as stage:
        pass
    assert (again, stage) == (parent, child)
    for key in ("its own", "another"):  # the first of which is finished
        with runs.open_run(mlflow_settings, "retrain", {runs.FLOW_RUN: key}) as new:
            assert new != parent


def test_a_run_has_its_tables_once_and_only_numbers_as_metrics(mlflow_settings: Settings):
    rows = [{"placer": "random", "overall_ms": 3.0}, {"placer": "dreamshard", "overall_ms": 2.0}]
    with runs.open_run(mlflow_settings, "evaluate") as run:
        run.log_metrics({"a": math.nan, "b": -math.inf, "c": None, "d": 1.0})
        run.log_tasks(["a"], "0123456789ab")
        for _ in range(2):
            run.log_table(rows)
    assert run.data.metrics == {"d": 1.0}
    table = json.loads(Path(run.tracking.download_artifacts(run.id, "tables/evaluation.json")).read_text())
    assert table == {"columns": ["placer", "overall_ms"], "data": [["random", 3.0], ["dreamshard", 2.0]]}
    (logged,) = run.tracking.get_run(run.id).inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("tasks", "0123456789ab")


def test_a_cancelled_flows_stages_are_killed(mlflow_settings: Settings):
    cancelled = runs.open_run(mlflow_settings, "retrain", {runs.FLOW_RUN: "cancelled"})
    stage = cancelled.__enter__().stage("train")
    stage.__enter__()
    with runs.open_run(mlflow_settings, "other", {runs.FLOW_RUN: "other"}):
        runs.end_killed(mlflow_settings, "cancelled", "retrain was Cancelled")
        assert statuses(mlflow_settings) == {"retrain": "KILLED", "train": "KILLED", "other": "RUNNING"}


OPEN_AND_RUN = """
import sys
from storage.mlflow_store import runs
from storage.settings import Settings
with runs.open_run(Settings.from_environment({"DREAMSHARD_HOME": sys.argv[1]}), "retrain"):
    pass
"""


def test_processes_that_open_a_new_home_at_once_keep_their_runs(tmp_path: Path):
    processes = [subprocess.Popen([sys.executable, "-c", OPEN_AND_RUN, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as opened:
        assert opened.execute("select count(*) from runs where status = 'FINISHED'").fetchone()[0] == 2
