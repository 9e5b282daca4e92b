"""CPU seconds of questions to a home after 500 retrainings, each as large as a default run: the best of three, after imports.

The store's own writers make one retraining, and write it again under other keys; versions have no files. As DuckDB uses all
cores, an idle machine answers in less than that.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from mlflow.entities import Metric, Param

from dreamshard.costs import MeasuredOn
from dreamshard.training import TrainingConfig
from storage.lake import catalog, rows as records
from storage.lake.parquet_files import datasets
from storage.mlflow_store import registry, runs
from storage.settings import Settings
from storage.store import Store, open_store
from tests.benchmarks.measuring import Row, row
from tests.helpers.lake import query
from tests.helpers.samples import make_evaluation, make_sample
from tests.helpers.tables import pool_of, roomy_task
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

ITERATIONS, PLACEMENTS, EVALUATED, ROUNDS = 10, 10, 320, 3
TABLES = "select table_name, rows, dim, compute_ms from table_costs where is_current order by 4 desc limit 5"
BY_HARDWARE = "select hardware, avg(overall_ms) from cost_samples group by 1"


def rows(quick: bool = False) -> Iterator[Row]:
    """A row per question; the newest version is the champion."""
    number = 50 if quick else 500
    with TemporaryDirectory() as folder:
        store = open_store(Settings.from_environment({"DREAMSHARD_HOME": folder}))
        retrain_often(store, number)
        files = sum(1 for _ in Path(folder, "lake").rglob("*.parquet"))
        for name, question in {
            "dreamshard models": lambda: registry.version_rows(store, registry.versions(store)[:5]),
            "costs of tables": lambda: query(store, TABLES),
            "mean costs by hardware": lambda: query(store, BY_HARDWARE),
            "writing the catalog": lambda: catalog.write_catalog(store),
        }.items():
            seconds = []
            for _ in range(3):
                began = time.process_time()
                assert question() != []
                seconds.append(time.process_time() - began)
            yield row(f"{name}, after {number} retrainings ({files} files)", min(seconds), "s", 1.0)


def retrain_often(store: Store, number: int) -> None:
    """Fill a home with what so many retrainings leave, on other tables each time; of one placement a table is alone."""
    pool, lake = pool_of(100), store.lake
    task, alone = roomy_task(pool.select(range(30))), [0, *[1] * 29]
    placed = [alone if n == 0 else [(t + n * t // 3) % 2 for t in range(30)] for n in range(PLACEMENTS)]
    samples = [make_sample(task, device, ms=1.0 + n) for n, device in enumerate(placed) for _ in range(ROUNDS)]
    origin = {"run_key": "", "iteration": 1, "dataset_version": ""}
    devices = [device for sample in samples for device in records.sample_to_rows(sample, **origin)]
    measured = pa.Table.from_pylist(devices, schema=datasets()["cost_samples"])
    trained, evaluated = (pa.concat_tables([measured] * times) for times in (ITERATIONS, EVALUATED // PLACEMENTS))
    iterations = [i for i in range(1, ITERATIONS + 1) for _ in range(len(measured))]
    placer = make_placer(start_training(pool, TrainingConfig(), seed=0))
    placer.cost_network.measured_on = MeasuredOn.of(samples[0])
    results = [make_evaluation(task, f"placer {n}", 2.0) for n in range(EVALUATED)]
    for n in range(number):
        dataset = lake.write_dataset(pool_of(100, seed=n), "tables.csv", "tables")
        keys = {"training": f"training-{n}", "evaluation": f"evaluation-{n}", "dataset": dataset}
        for split in ("train", "test"):
            lake.write_tasks([task], dataset, split, f"tasks-{n}")
        lake.append_measurements(of_run(trained, keys["training"], iterations, dataset))
        lake.append_measurements(of_run(evaluated, keys["evaluation"], [0] * len(evaluated), dataset))
        where = {"testbed": "simulated", "hardware": "simulated H100", "dataset_version": dataset}
        lake.write_evaluation(results, {}, keys["evaluation"], **where)
        lake.write_estimates(placer, dataset, keys["training"], ITERATIONS)
        register(store, keys)
        if n % 8 == 0:  # every flow does
            catalog.write_catalog(store)
    registry.set_alias(store, str(number), "champion", "the newest")
    registry.write_versions(store)


def of_run(table: pa.Table, run: str, iterations: list[int], dataset: str) -> pa.Table:
    """The rows under other keys; of two devices and of rounds one after another, so they get ids of their own."""
    devices, rounds = ([f"{run}.{n // size}" for n in range(len(table))] for size in (2, 2 * ROUNDS))
    ids = {"sample_id": devices, "measurement_id": rounds, "iteration": iterations}
    ids |= {"run_key": [run] * len(table), "dataset_version": [dataset] * len(table)}
    return pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **ids}, schema=table.schema)


def register(store: Store, keys: dict[str, str]) -> None:
    """A version with as many figures, parameters and tags as a retraining logs."""
    made_of, tracking = training_of(hardware="simulated H100"), runs.client(store)
    if not tracking.search_registered_models(f"name = '{made_of.registered_model}'"):
        tracking.create_registered_model(made_of.registered_model)
    run = tracking.create_run(runs.experiment_id(store), tags={"model": made_of.model}).info.run_id
    figures = [Metric(f"figure_{n}", 1.0, 0, step) for step in range(ITERATIONS) for n in range(8)]
    tracking.log_batch(run, figures, [Param(f"fact_{n}", str(n)) for n in range(10)])
    tags = {**keys, "iteration": str(ITERATIONS), registry.MADE_OF: made_of.to_json()}
    tracking.create_model_version(made_of.registered_model, f"runs:/{run}/placer", run, tags)
