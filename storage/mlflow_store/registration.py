"""Registers a trained placer as a version in MLflow: its files, what it was made of, and its metrics."""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import pyarrow as pa
import pyarrow.parquet as pq

import dreamshard
from dreamshard.tables import Tables
from dreamshard.training import TrainedPlacer, save_placer
from storage.lake.rows import description_columns
from storage.mlflow_store import registry, runs
from storage.mlflow_store.runs import Run
from storage.run_records.trainings import Training
from storage.settings import Settings

_EXAMPLE = [
    {
        "num_devices": 2,
        "memory_gb": 1.0,
        "tables": [
            {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.0},
            {"name": "items", "rows": 200_000, "dim": 64, "pooling_factor": 12.5},
        ],
    }
]
"""An example request, which MLflow stores with every version."""

_REQUIREMENTS = (
    *("mlflow", "numpy", "pyarrow", "pydantic", "torch", "jaxtyping", "numba", "safetensors", "scipy", "psutil"),
    "pyyaml",
)
"""Packages that a version needs, pinned to those of its training; MLflow's inference takes minutes and a network."""


def register_placer(
    settings: Settings,
    placer: TrainedPlacer,
    run: Run,
    made_of: Training,
    *,
    metrics: Mapping[str, float | None] | None = None,
    step: int = 0,
    tags: Mapping[str, Any] | None = None,
    pool: Tables | None = None,
) -> str:
    """Make a placer the next version of its model for its topology; returns the version's URI.

    Args:
        run: MLflow run of the training; MLflow's comparison of versions shows its metrics and parameters.
        made_of: the training; its model and topology decide on the registered model.
        metrics: of this version.
        step: iteration of the metrics.
        tags: further tags of the version.
        pool: training tables; their means replace fields that a served request omits.
    """
    name, experiment = made_of.registered_model, runs.experiment_id(settings)
    called = f"{made_of.model}-{made_of.topology.label}"  # MLflow allows no dots here
    model = mlflow.initialize_logged_model(called, source_run_id=run.id, experiment_id=experiment)
    with TemporaryDirectory() as scratch:
        artifacts = {"placer": f"{scratch}/placer"}
        save_placer(placer, Path(artifacts["placer"]))
        if pool is not None:
            artifacts["pool"] = f"{scratch}/pool.parquet"
            pq.write_table(pa.table(description_columns(pool)), artifacts["pool"])
        mlflow.pyfunc.log_model(
            name=called,
            model_id=model.model_id,
            python_model=str(Path(__file__).with_name("placer_model.py")),
            artifacts=artifacts,
            code_paths=[str(Path(dreamshard.__path__[0]))],
            input_example=_EXAMPLE,
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _REQUIREMENTS],
        )
    mlflow.finalize_logged_model(model.model_id, "READY")
    # first: a version that exists has its metrics
    run.log_metrics(metrics or {}, step, model=model.model_id)
    labels = {**(tags or {}), registry.MADE_OF: made_of.to_json(), "algorithm": made_of.recipe.training.algorithm}
    if (measured := placer.cost_network.measured_on) is not None:
        labels[registry.MEASURED_ON] = measured.model_dump_json()
    tracking = run.tracking
    if not tracking.search_registered_models(f"name = '{name}'"):
        about = f"Places the embedding tables of {made_of.model}, by costs of {made_of.topology}."
        tracking.create_registered_model(name, description=about)
    version = tracking.create_model_version(
        name,
        f"models:/{model.model_id}",
        run.id,
        {label: str(value) for label, value in labels.items()},
        model_id=model.model_id,
    )
    return f"models:/{version.name}/{version.version}"
