"""Seconds of questions to a home in which a model was retrained 500 times, each as large as a default run.

The best of three, after imports. The store's own writers make one retraining and write it again under other keys; versions
have no files.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from mlflow.entities import Metric, Param

from dreamshard.costs import CostSample, MeasuredOn
from dreamshard.training import TrainingConfig
from storage.lake import catalog, rows as records
from storage.lake.lake import EVALUATION
from storage.lake.parquet_files import hive_folder, read_parquet, write_parquet
from storage.lake.sample_buffer import append_measurements, merge
from storage.lake.schemas import datasets
from storage.mlflow_store import registry, runs
from storage.settings import Settings
from storage.store import Store, open_store
from tests.benchmarks.measuring import Row, row
from tests.helpers.samples import make_evaluation, make_sample
from tests.helpers.tables import pool_of, roomy_task
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

RETRAININGS, ITERATIONS, PLACEMENTS, EVALUATED, ROUNDS = 500, 10, 10, 320, 3
README = "select table_name, rows, dim, compute_ms from table_costs where is_current order by 4 desc limit 5"
BY_HARDWARE = "select hardware, avg(overall_ms) from cost_samples group by 1"
FIGURES = ("cost_ms", "prediction_error_pct", *(f"gain_{n}" for n in range(6)))


def rows(quick: bool = False) -> Iterator[Row]:
    """A row per question; the newest version is the champion."""
    number = RETRAININGS // 10 if quick else RETRAININGS
    with TemporaryDirectory() as folder:
        store = open_store(Settings.from_environment({"DREAMSHARD_HOME": folder}))
        retrain_often(store, number)
        asked: dict[str, Callable[[], object]] = {
            "dreamshard models": lambda: registry.version_rows(store),
            "README's SQL": lambda: answer(store, README),
            "mean costs by hardware": lambda: answer(store, BY_HARDWARE),
            "writing the catalog": lambda: catalog.write_catalog(store),
        }
        files = sum(1 for _ in Path(folder, "lake").rglob("*.parquet"))
        for name, question in asked.items():
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                assert question() != []
                seconds.append(time.perf_counter() - began)
            yield row(f"{name}, after {number} retrainings ({files} files)", min(seconds), "s", 1.0)


def answer(store: Store, sql: str) -> list[tuple]:
    """Rows of a query, which opens the views as `dreamshard sql` does."""
    with catalog.answering(store, sql) as found:
        return found.fetchall()


def retrain_often(store: Store, number: int) -> None:
    """Fill a home with what so many retrainings on ever other tables leave."""
    pool, lake = pool_of(100), store.lake
    task = roomy_task(pool.select(range(30)))
    samples = [make_sample(task, placed(n // ROUNDS), ms=1.0 + n % 7) for n in range(PLACEMENTS * ROUNDS)]
    placer = make_placer(start_training(pool, TrainingConfig(), seed=0))
    placer.cost_network.measured_on = MeasuredOn.of(samples[0])
    measured, evaluated = rows_of(samples), rows_of(samples[:4] * (EVALUATED * ROUNDS // 4))
    where = {"testbed": "simulated", "hardware": "simulated H100", "dataset_version": "d"}
    lake.write_evaluation([make_evaluation(task, f"placer {n}", 2.0) for n in range(EVALUATED)], {}, "e", **where)
    folder = hive_folder(lake.root / "evaluations", testbed="simulated", dataset_version="d")
    results = read_parquet(folder / "e.parquet")
    for n in range(number):
        dataset = lake.write_dataset(pool_of(100, seed=n), "tables.csv", "tables")
        training, evaluation = f"training-{n}", f"evaluation-{n}"
        for split in ("train", "test"):
            lake.write_tasks([task], dataset, split, f"tasks-{n}")
        for iteration in range(1, ITERATIONS + 1):
            made = of_run(measured, {"run_key": training, "iteration": iteration, "dataset_version": dataset})
            append_measurements(lake, f"{training}.{iteration:04}", made)
        merge(lake, training)
        made = of_run(evaluated, {"run_key": evaluation, "iteration": EVALUATION, "dataset_version": dataset})
        append_measurements(lake, f"{evaluation}.{EVALUATION:04}", made)
        folder = hive_folder(lake.root / "evaluations", testbed="simulated", dataset_version=dataset)
        write_parquet(folder / f"{evaluation}.parquet", with_columns(results, {"run_key": evaluation}))
        lake.write_estimates(placer, dataset, training, ITERATIONS)
        register(store, {"training": training, "evaluation": evaluation, "dataset": dataset})
    registry.set_alias(store, str(number), "champion", "the newest")
    registry.write_versions(store)


def placed(number: int) -> list[int]:
    """Thirty tables on two devices; in the first placement one is alone."""
    return [0, *[1] * 29] if number == 0 else [(t + number * t // 3) % 2 for t in range(30)]


def rows_of(samples: Sequence[CostSample]) -> pa.Table:
    """One row per device."""
    origin = {"run_key": "", "iteration": 1, "dataset_version": ""}
    known = {id(sample): records.sample_to_rows(sample, **origin) for sample in samples}
    devices = [device for sample in samples for device in known[id(sample)]]
    return pa.Table.from_pylist(devices, schema=datasets()["cost_samples"])


def of_run(table: pa.Table, origin: Mapping[str, object]) -> pa.Table:
    """Rows of two devices and of rounds one after another, as if measured by another run."""
    ids = [f"{origin['run_key']}.{origin['iteration']}.{n // 2}" for n in range(len(table))]
    placements = [f"{origin['run_key']}.{origin['iteration']}.{n // (2 * ROUNDS)}" for n in range(len(table))]
    return with_columns(table, {**origin, "sample_id": ids, "measurement_id": placements})


def with_columns(table: pa.Table, columns: Mapping[str, object]) -> pa.Table:
    """The table with other values in these columns: a list, or one for all rows."""
    for name, values in columns.items():
        every = values if isinstance(values, list) else [values] * len(table)
        at, field = table.column_names.index(name), table.schema.field(name)
        table = table.set_column(at, field, pa.array(every, field.type))
    return table


def register(store: Store, keys: Mapping[str, str]) -> None:
    """A version with as many figures, parameters and tags as a retraining logs."""
    made_of, tracking = training_of(hardware="simulated H100"), runs.client(store)
    name = made_of.registered_model
    if not tracking.search_registered_models(f"name = '{name}'"):
        tracking.create_registered_model(name)
    run = tracking.create_run(runs.experiment_id(store), tags={"model": made_of.model}).info.run_id
    figures = [Metric(figure, 1.0, 0, step) for step in range(ITERATIONS) for figure in FIGURES]
    tracking.log_batch(run, figures, [Param(f"fact_{n}", str(n)) for n in range(10)])
    tags = {**keys, "iteration": str(ITERATIONS), registry.MADE_OF: made_of.to_json()}
    tracking.create_model_version(name, f"runs:/{run}/placer", run, tags)
