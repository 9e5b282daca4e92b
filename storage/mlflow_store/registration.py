"""Registers a trained placer as a version in MLflow: its files, origin and metrics."""

import importlib.metadata
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.pyfunc
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.models import Model

import dreamshard
from dreamshard import training
from dreamshard.tables import Tables
from storage.lake.rows import description_columns
from storage.mlflow_store.registry import ensure_model, reference_to
from storage.mlflow_store.runs import client, finite
from storage.settings import Settings

_EXAMPLE = [
    {
        "num_devices": 2,
        "memory_gb": 1.0,
        "tables": [
            {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.0},
            {"name": "items", "rows": 200_000, "dim": 64, "pooling_factor": 12.5},
            {"name": "words", "rows": 50_000, "dim": 32, "pooling_factor": 30.0},
        ],
    }
]
"""An example request, which MLflow stores with every version."""

_REQUIREMENTS = (
    "mlflow",
    "numpy",
    "pyarrow",
    "pydantic",
    "torch",
    "jaxtyping",
    "numba",
    "safetensors",
    "scipy",
    "psutil",
    "pyyaml",
)
"""Packages that a version needs, pinned to those of its training; MLflow's inference takes minutes and a network."""


def register_placer(
    settings: Settings,
    placer_folder: Path,
    run: str,
    *,
    metrics: Mapping[str, float | None] | None = None,
    step: int = 0,
    tags: Mapping[str, Any] | None = None,
    pool: Tables | None = None,
) -> str:
    """Make a saved placer the next version of the algorithm of the settings.

    Args:
        placer_folder: folder written by `dreamshard.training.save_placer`.
        run: MLflow run of the training; MLflow's comparison of versions shows its metrics and parameters.
        metrics: of this version; see `log_model_metrics`.
        step: iteration of the metrics.
        tags: tags of the version.
        pool: training tables; their means replace fields that a served request omits.

    Returns:
        The version.

    Raises:
        ValueError: the folder holds no placer.
    """
    training.load_placer(placer_folder)  # a damaged placer must not become a version
    registry, name = client(settings), settings.registered_model
    experiment = registry.get_run(run).info.experiment_id
    model = registry.create_logged_model(experiment, name, source_run_id=run)
    with TemporaryDirectory() as scratch, warnings.catch_warnings(record=True):  # that types are not checked
        placer = shutil.copytree(placer_folder, Path(scratch) / "placer")  # this name is kept in the version
        artifacts = {"placer": str(placer)}
        if pool is not None:
            artifacts["pool"] = f"{scratch}/pool.parquet"
            pq.write_table(pa.table(description_columns(pool)), artifacts["pool"])
        logged = Model.log(
            artifact_path=None,
            name=name,
            model_id=model.model_id,
            flavor=mlflow.pyfunc,
            run_id=run,
            python_model=str(Path(__file__).with_name("placer_model.py")),
            artifacts=artifacts,
            code_paths=[str(Path(dreamshard.__path__[0]))],
            input_example=_EXAMPLE,  # no signature: the model checks requests with better messages
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _REQUIREMENTS],
        )
    registry.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    log_model_metrics(
        settings, run, model.model_id, metrics or {}, step
    )  # first: a version that exists has its metrics
    ensure_model(settings)
    labels = {tag: str(value) for tag, value in (tags or {}).items()}
    return reference_to(
        registry.create_model_version(name, logged.model_uri, run_id=run, tags=labels, model_id=logged.model_id)
    )


def log_model_metrics(
    settings: Settings,
    run: str,
    model: str,
    metrics: Mapping[str, float | None],
    step: int = 0,
    on: tuple[str, str] | None = None,
) -> None:
    """Log metrics on a run, linked to the model that it made, except those that are None or not finite.

    Args:
        model: MLflow's id of the model.
        on: name and digest of the dataset of the measurements, which is an input of the run.
    """
    values, (dataset, digest) = finite(metrics), on or (None, None)
    now_ms = int(time.time() * 1000)
    batch = [Metric(name, value, now_ms, step, model, dataset, digest, run) for name, value in values.items()]
    if batch:
        client(settings).log_batch(run, metrics=batch)
