import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, INVALID_PARAMETER_VALUE

from dreamshard.tables import Tables
from storage.mlflow_store import datasets, runs
from storage.settings import Settings


def test_the_dataset_version_is_an_input_of_the_run(mlflow_settings: Settings, tables: Tables):
    with runs.chain(mlflow_settings, "ingest") as run:
        datasets.log_dataset(mlflow_settings, run, "0123456789ab", tables, "meta-dlrm-2021")
    logged = runs.client(mlflow_settings).get_run(run).inputs.dataset_inputs[0]
    assert (logged.dataset.name, logged.dataset.digest) == ("meta-dlrm-2021", "0123456789ab")
    assert json.loads(logged.dataset.profile) == {"num_tables": 4, "num_lookups": 1050}
    assert logged.tags[0].value == "training"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """MLflow's database refuses an input once for each code in the list."""
    codes: list[int] = []
    log_inputs = MlflowClient.log_inputs

    def log(*given):
        if codes:
            raise MlflowException("duplicate key value violates unique constraint", error_code=codes.pop())
        return log_inputs(*given)

    monkeypatch.setattr(MlflowClient, "log_inputs", log)
    return codes


def test_a_run_that_another_was_quicker_than_finds_the_dataset(
    mlflow_settings: Settings, tables: Tables, refused: list[int]
):
    with runs.chain(mlflow_settings, "ingest") as run:
        refused += [BAD_REQUEST]
        datasets.log_dataset(mlflow_settings, run, "0123456789ab", tables, "meta-dlrm-2021")
    assert len(runs.client(mlflow_settings).get_run(run).inputs.dataset_inputs) == 1


@pytest.mark.parametrize("answers", [[BAD_REQUEST] * 3, [INVALID_PARAMETER_VALUE]])
def test_what_stays_refused_is_an_error(
    mlflow_settings: Settings, tables: Tables, refused: list[int], answers: list[int]
):
    refused += answers
    with runs.chain(mlflow_settings, "ingest") as run, pytest.raises(MlflowException, match="duplicate key"):
        datasets.log_dataset(mlflow_settings, run, "0123456789ab", tables, "meta-dlrm-2021")
    assert not refused


def test_runs_that_bring_the_same_dataset_at_once_all_have_it(mlflow_settings: Settings, tables: Tables):
    started = []
    for _ in range(6):
        with runs.chain(mlflow_settings, "ingest") as run:
            started.append(run)
    together = Barrier(len(started))

    def bring(run: str) -> None:
        together.wait()
        datasets.log_dataset(mlflow_settings, run, "0123456789ab", tables, "meta-dlrm-2021")

    with ThreadPoolExecutor(len(started)) as threads:
        list(threads.map(bring, started))
    logged = [runs.client(mlflow_settings).get_run(run).inputs.dataset_inputs for run in started]
    assert [len(found) for found in logged] == [1] * len(started)
