"""A home, a dataset of four tables that can be checked by hand, and samples measured on it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dreamshard.costs import CostSample, Exchange
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer, TrainingConfig
from storage.lake import Lake
from storage.lake.parquet_files import write_rows
from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.lake import append_samples
from tests.helpers.samples import four_tables, make_evaluation, make_sample
from tests.helpers.testbeds import simulated
from tests.helpers.trained import make_placer, start_training


@pytest.fixture
def settings(tmp_path: Path) -> Store:
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path / "home [of] o'neil")}))


@pytest.fixture
def store(settings: Store) -> Store:
    return settings


@pytest.fixture
def lake(store: Store) -> Lake:
    return store.lake


@pytest.fixture
def tables() -> Tables:
    return replace(four_tables(), block_share=torch.arange(4 * 64.0).reshape(4, 64) / 1000)


@pytest.fixture
def version(lake: Lake, tables: Tables) -> str:
    """The tables' dataset version, in the lake."""
    return lake.write_dataset(tables, "by hand")


@pytest.fixture
def task(tables: Tables) -> PlacementTask:
    return PlacementTask(tables.select([2, 0, 3]), 2, 10**6, "fp16", "rowwise_adagrad", "train-000")


@pytest.fixture
def sample(task: PlacementTask) -> CostSample:
    return make_sample(task, [1, 0, 1])


@pytest.fixture
def mlflow_settings(settings: Store, empty_database: Path) -> Store:
    """A home with an MLflow database."""
    shutil.copy(empty_database, settings.home / "mlflow.db")
    return settings


@pytest.fixture(scope="session")
def placer() -> TrainedPlacer:
    """A placer, untrained."""
    return make_placer(start_training(four_tables(), TrainingConfig(), seed=0))


@pytest.fixture
def filled(lake: Lake, sample: CostSample, task: PlacementTask, version: str) -> None:
    """A row for every view."""
    lake.write_tasks([task], version, "train", "set")
    lake.write_exchanges("abacus", [simulated().measure_exchange(Exchange(sent_bytes=torch.tensor([8, 8])))])
    append_samples(lake, [sample, make_sample(task, [0, 0, 0], "cluster")], "run", 1, version)
    lake.write_evaluation(
        [make_evaluation(task, "random", 4.0)], {}, "key", dataset_version=version, testbed="cluster", hardware="x"
    )
    write_rows(lake.root / "versions" / "versions.parquet", "versions", [{"version": 1}])
