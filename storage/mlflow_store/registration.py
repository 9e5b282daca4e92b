"""A trained placer becomes a version in MLflow's registry: its files, where it came from, and its figures."""

import importlib.metadata
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dreamshard
from dreamshard import model_files
from dreamshard.tables import Tables
from storage.mlflow_store.placer_interface import EXAMPLE, write_pool
from storage.mlflow_store.registry import MODEL
from storage.mlflow_store.runs import client  # before MLflow: it turns MLflow's telemetry off
from storage.settings import Settings

# isort: split
import mlflow.pyfunc
from mlflow.entities import LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.models import Model

_REQUIREMENTS = ("mlflow", "numpy", "pyarrow", "pydantic", "torch", "jaxtyping", "safetensors", "scipy")
"""What a version needs to place, pinned to what it was trained with; inferring it would take minutes and a network."""


def register_placer(
    settings: Settings,
    placer_folder: Path,
    run: str,
    *,
    metrics: Mapping[str, float | None] | None = None,
    step: int = 0,
    tags: Mapping[str, Any] | None = None,
    description: str = "",
    pool: Tables | None = None,
) -> str:
    """Make a saved placer the next version of `dreamshard`.

    Args:
        placer_folder: what `dreamshard.model_files.save_placer` wrote.
        run: MLflow run it came from; the page that compares versions shows this run's metrics and parameters.
        metrics: figures of this version, logged on the run and linked to the model; see `log_version_metrics`.
        step: the iteration that the figures are of.
        tags: on the version.
        description: for people, Markdown.
        pool: training tables, whose means fill in what a served request leaves out.

    Returns:
        The version's number, as MLflow has it: a string.

    Raises:
        ValueError: the folder holds no placer.
    """
    model_files.load_placer(placer_folder)  # a broken one must not become a version
    registry = client(settings)
    experiment = registry.get_run(run).info.experiment_id
    model = registry.create_logged_model(experiment, MODEL, source_run_id=run)
    with (
        tempfile.TemporaryDirectory() as scratch,
        warnings.catch_warnings(record=True),
    ):  # that types are not its to check
        placer = shutil.copytree(placer_folder, Path(scratch) / "placer")  # the copy's name is its name in the version
        artifacts = {"placer": str(placer)}
        if pool is not None:
            artifacts["pool"] = str(write_pool(Path(scratch) / "pool.parquet", pool))
        logged = Model.log(
            artifact_path=None,
            name=MODEL,
            model_id=model.model_id,
            flavor=mlflow.pyfunc,
            run_id=run,
            python_model=str(Path(__file__).with_name("placer_model.py")),
            artifacts=artifacts,
            code_paths=[str(Path(dreamshard.__path__[0]))],
            input_example=EXAMPLE,  # its form is checked by the model's code, which says more than a signature can
            model_config={"version": ""},  # which a server may be told: no version knows its own number yet
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _REQUIREMENTS],
        )
    registry.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    _log_linked(settings, run, model.model_id, metrics or {}, step)  # first: a version that exists has its figures
    _ensure_model(settings)
    labels = {name: str(value) for name, value in (tags or {}).items()}
    version = registry.create_model_version(
        MODEL, logged.model_uri, run_id=run, tags=labels, description=description, model_id=logged.model_id
    ).version
    return str(version)


def log_version_metrics(
    settings: Settings,
    version: str,
    metrics: Mapping[str, float | None],
    step: int = 0,
    on: tuple[str, str] | None = None,
) -> None:
    """Log figures of a version on its run, linked to its model; those that are None or not finite are left out.

    Args:
        on: name and digest of the dataset, an input of that run, that they were measured on.
    """
    found = client(settings).get_model_version(MODEL, version)
    _log_linked(settings, str(found.run_id), str(found.source).removeprefix("models:/"), metrics, step, on)


def _log_linked(
    settings: Settings,
    run: str,
    model: str,
    metrics: Mapping[str, float | None],
    step: int,
    on: tuple[str, str] | None = None,
) -> None:
    values = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
    now_ms = int(time.time() * 1000)
    dataset, digest = on or (None, None)
    batch = [Metric(name, value, now_ms, step, model, dataset, digest, run) for name, value in values.items()]
    if batch:
        client(settings).log_batch(run, metrics=batch)


def _ensure_model(settings: Settings) -> None:
    try:
        client(settings).create_registered_model(MODEL, description="Places embedding tables on devices.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
