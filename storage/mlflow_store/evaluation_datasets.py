"""Evaluation datasets in MLflow: the held-out tasks that versions were measured on, and their figures on them.

A version's metrics are linked to it, so that MLflow's pages show side by side only what was measured on the same tasks
and hardware. MLflow's evaluation datasets for generative AI hold prompts and expectations, which a placement has not.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from storage.mlflow_store.datasets import log_input
from storage.mlflow_store.registration import log_version_metrics
from storage.mlflow_store.runs import client
from storage.settings import Settings

# isort: split
from mlflow.entities import Dataset, LoggedModelInput
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

_COLUMNS = {
    "task": DataType.string,
    "placer": DataType.string,
    "overall_ms": DataType.double,
    "predicted_ms": DataType.double,
    "legal": DataType.boolean,
    "place_ms": DataType.double,
}


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Held-out tasks on a testbed: costs compare on the same of it only.

    Attributes:
        dataset: version of the tables.
        tasks: key of the tasks.
        hardware: that they were measured on.
        evaluation: key of the evaluation's rows in the lake.
        num_tasks: how many.
    """

    dataset: str
    tasks: str
    hardware: str
    evaluation: str
    num_tasks: int

    @property
    def name(self) -> str:
        """What MLflow calls it."""
        return f"held-out tasks on {self.hardware}"[:500]


def log_heldout(settings: Settings, run: str, tasks: HeldOut, models: Mapping[str, str] | None = None) -> None:
    """Log the tasks as an evaluation dataset of a run: its digest is the tasks' key, its source the rows in the lake.

    Args:
        models: versions that the run measured on them, by name.
    """
    columns: list[ColSpec | TensorSpec] = [ColSpec(kind, name) for name, kind in _COLUMNS.items()]
    query = f"select * from evaluations where run_key = '{tasks.evaluation}'"
    entity = Dataset(
        name=tasks.name,
        digest=tasks.tasks[:36],
        source_type="local",
        source=json.dumps({"uri": str(settings.lake_root / "evaluations"), "sql": query}),
        schema=json.dumps({"mlflow_colspec": Schema(columns).to_dict()}),
        profile=json.dumps({"num_tasks": tasks.num_tasks, "dataset": tasks.dataset, "evaluation": tasks.evaluation}),
    )
    registry = client(settings)
    found = [registry.get_model_version("dreamshard", version) for version in (models or {}).values()]
    measured = [LoggedModelInput(str(each.source).removeprefix("models:/")) for each in found]
    log_input(settings, run, entity, "evaluation", measured)


def log_figures_on(
    settings: Settings, version: str, metrics: Mapping[str, float], tasks: HeldOut, step: int = 0
) -> None:
    """Log what a version reached on the tasks, on its run and linked to its model and to the tasks."""
    log_heldout(settings, str(client(settings).get_model_version("dreamshard", version).run_id), tasks)
    log_version_metrics(settings, version, metrics, step, on=(tasks.name, tasks.tasks[:36]))
