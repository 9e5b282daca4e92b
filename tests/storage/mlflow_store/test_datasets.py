import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from dreamshard.tables import Tables
from storage.mlflow_store import datasets, runs
from storage.settings import Settings


def test_runs_that_bring_the_same_dataset_at_once_all_have_it_as_an_input(mlflow_settings: Settings, tables: Tables):
    started = []
    for _ in range(6):
        with runs.chain(mlflow_settings, "ingest") as run:
            started.append(run)
    together = Barrier(len(started))

    def bring(run: str) -> None:
        together.wait()
        datasets.log_tables(mlflow_settings, run, "0123456789ab", tables, "meta-dlrm-2021")

    with ThreadPoolExecutor(len(started)) as threads:
        list(threads.map(bring, started))
    logged = [runs.client(mlflow_settings).get_run(run).inputs.dataset_inputs for run in started]
    assert [len(found) for found in logged] == [1] * len(started)
    dataset = logged[0][0].dataset
    assert (dataset.name, dataset.digest) == ("meta-dlrm-2021", "0123456789ab")
    assert json.loads(dataset.profile) == {"num_tables": 4, "num_lookups": 1050}
