"""Held-out tasks as datasets in MLflow, and the metrics that versions reached on them.

Metrics are linked to the tasks, so MLflow's pages compare only measurements of the same tasks and hardware. MLflow's own
evaluation datasets are for generative AI: they hold prompts and expectations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.entities import LoggedModelInput

from storage.mlflow_store import heldout_metrics, registry
from storage.mlflow_store.datasets import log_input, make_dataset
from storage.mlflow_store.registration import log_model_metrics
from storage.settings import Settings

COLUMNS = {
    "task": "string",
    "placer": "string",
    "overall_ms": "double",
    "predicted_ms": "double",
    "legal": "boolean",
    "place_ms": "double",
}


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Held-out tasks on a testbed; costs are comparable only within one of these.

    Attributes:
        dataset: version of the tables.
        tasks: key of the tasks.
        hardware: hardware of the testbed.
        evaluation: key of the evaluation's rows in the lake.
        num_tasks: number of tasks.
    """

    dataset: str
    tasks: str
    hardware: str
    evaluation: str
    num_tasks: int

    @property
    def name(self) -> str:
        """The dataset's name in MLflow."""
        return f"held-out tasks on {self.hardware}"[:500]


def log_heldout(settings: Settings, run: str, tasks: HeldOut, models: Mapping[str, str] | None = None) -> None:
    """Log the tasks as a dataset of a run; its digest is the key of the tasks, its source the evaluation's rows.

    Args:
        models: versions that the run measured on the tasks, by name.
    """
    profile = {"num_tasks": tasks.num_tasks, "dataset": tasks.dataset, "evaluation": tasks.evaluation}
    query = f"select * from evaluations where run_key = '{tasks.evaluation}'"
    folder = settings.lake_root / "evaluations"
    dataset = make_dataset(tasks.name, tasks.tasks[:36], folder, COLUMNS, profile, sql=query)
    measured = [LoggedModelInput(registry.model_of(settings, version)) for version in (models or {}).values()]
    log_input(settings, run, dataset, "evaluation", measured)


def log_figures_on(
    settings: Settings, version: str, metrics: Mapping[str, float], tasks: HeldOut, step: int = 0
) -> None:
    """Log metrics of a version on its run, linked to its model and to the tasks, whose key is in their names."""
    run, model = registry.run_of(settings, version), registry.model_of(settings, version)
    log_heldout(settings, run, tasks)
    named = heldout_metrics.named(metrics, tasks.tasks)
    log_model_metrics(settings, run, model, named, step, on=(tasks.name, tasks.tasks[:36]))
