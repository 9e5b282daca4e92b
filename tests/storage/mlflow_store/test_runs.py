import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pandas as pd
import pytest

from storage.mlflow_store import runs
from storage.mlflow_store.runs import EXPERIMENT
from storage.settings import Settings


def statuses(settings: Settings) -> dict[str, str]:
    tracking = runs.client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT).experiment_id
    return {run.info.run_name: run.info.status for run in tracking.search_runs([experiment])}


def test_one_homes_runs_do_not_become_the_next_homes(mlflow_settings: Settings, tmp_path):
    runs.client(mlflow_settings)
    other = Settings.from_environment({**os.environ, "DREAMSHARD_HOME": str(tmp_path / "other")})
    assert other.tracking_uri == f"sqlite:///{tmp_path}/other/mlflow.db"
    assert "MLFLOW_REGISTRY_URI" not in os.environ


def test_stages_are_children_of_their_chain(mlflow_settings: Settings):
    with runs.chain(mlflow_settings, "retrain", params={"seed": 3, "tasks": {"num_devices": 2}}) as parent:
        with runs.stage(mlflow_settings, parent, "ingest") as child:
            assert statuses(mlflow_settings) == {"retrain": "RUNNING", "ingest": "RUNNING"}
        assert runs.client(mlflow_settings).get_run(child).data.tags["mlflow.parentRunId"] == parent
    assert statuses(mlflow_settings) == {"retrain": "FINISHED", "ingest": "FINISHED"}
    logged = runs.client(mlflow_settings).get_run(parent).data.params
    assert logged == {"seed": "3", "tasks.num_devices": "2"}


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_nothing_stays_running_after_a_failure(mlflow_settings: Settings, error: type[BaseException], status: str):
    def fail():
        with (
            runs.chain(mlflow_settings, "retrain") as parent,
            runs.stage(mlflow_settings, parent, "ingest"),
        ):
            raise error

    with pytest.raises(error):
        fail()
    assert statuses(mlflow_settings) == {"retrain": status, "ingest": status}


def test_a_chain_that_was_killed_goes_on_in_its_runs(mlflow_settings: Settings):
    killed = runs.chain(mlflow_settings, "retrain", key="its own")
    parent = killed.__enter__()
    killed_stage = runs.stage(mlflow_settings, parent, "train")
    child = killed_stage.__enter__()
    with (
        runs.chain(mlflow_settings, "retrain", key="its own") as again,
        runs.stage(mlflow_settings, again, "train") as stage,
    ):
        pass
    assert (again, stage) == (parent, child)
    for key in ("its own", "another"):  # the first of which is finished
        with runs.chain(mlflow_settings, "retrain", key=key) as new:
            assert new != parent


def test_what_is_not_a_number_is_not_logged(mlflow_settings: Settings):
    with runs.chain(mlflow_settings, "evaluate") as run:
        runs.log_metrics(mlflow_settings, run, {"a": math.nan, "b": -math.inf, "c": None, "d": 1.0})
    assert runs.client(mlflow_settings).get_run(run).data.metrics == {"d": 1.0}


def test_a_table_lies_with_the_run_once(mlflow_settings: Settings):
    rows = [{"placer": "random", "overall_ms": 3.0}, {"placer": "dreamshard", "overall_ms": 2.0}]
    with runs.chain(mlflow_settings, "evaluate") as run:
        for _ in range(2):
            runs.log_table(mlflow_settings, run, rows)
    tracking = runs.client(mlflow_settings)
    table = json.loads((mlflow_settings.home / tracking.download_artifacts(run, "tables/evaluation.json")).read_text())
    assert table == {"columns": ["placer", "overall_ms"], "data": [["random", 3.0], ["dreamshard", 2.0]]}


def test_runs_that_bring_the_same_dataset_at_once_all_have_it_as_an_input(mlflow_settings: Settings):
    started = []
    for _ in range(6):
        with runs.chain(mlflow_settings, "ingest") as run:
            started.append(run)
    together, frame = Barrier(len(started)), pd.DataFrame({"name": ["a"], "rows": [1000]})

    def bring(run: str) -> None:
        together.wait()
        runs.log_input(mlflow_settings, run, frame, "training", source="/lake", name="a.csv", digest="0123456789ab")

    with ThreadPoolExecutor(len(started)) as threads:
        list(threads.map(bring, started))
    logged = [runs.client(mlflow_settings).get_run(run).inputs.dataset_inputs for run in started]
    assert [len(found) for found in logged] == [1] * len(started)
    dataset = logged[0][0].dataset
    assert (dataset.name, dataset.digest) == ("a.csv", "0123456789ab")
    assert "rows" in dataset.schema


def test_a_failed_run_says_why(mlflow_settings: Settings):
    def fail():
        with runs.chain(mlflow_settings, "retrain"):
            raise ValueError("there is no tables.csv,\n so nothing can be read; give another")

    with pytest.raises(ValueError, match="tables"):
        fail()
    tracking = runs.client(mlflow_settings)
    (run,) = tracking.search_runs([tracking.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert run.data.tags["mlflow.note.content"] == "there is no tables.csv, so nothing can be read; give another"


def test_what_a_cancelled_flow_left_open_is_killed_with_its_stages(mlflow_settings: Settings):
    cancelled = runs.chain(mlflow_settings, "retrain", key="cancelled")
    stage = runs.stage(mlflow_settings, cancelled.__enter__(), "train")
    stage.__enter__()
    with runs.chain(mlflow_settings, "other", key="other"):
        runs.end_killed(mlflow_settings, "cancelled", "retrain was Cancelled")
        assert statuses(mlflow_settings) == {"retrain": "KILLED", "train": "KILLED", "other": "RUNNING"}
