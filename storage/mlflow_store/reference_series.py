"""Costs of versions on a reference set, as metrics of each version, and as one series over all of them.

The series is a run of its own per reference set and algorithm, whose steps are the numbers of the versions, so that one
chart shows the cost over versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dreamshard.names import DEFAULT_ALGORITHM, number_of
from storage.mlflow_store import registry, runs
from storage.mlflow_store.datasets import log_input, make_dataset
from storage.mlflow_store.evaluation_datasets import COLUMNS
from storage.mlflow_store.experiment import experiment_id
from storage.mlflow_store.registration import log_model_metrics
from storage.settings import Settings

COST = "reference_cost_ms"
"""Mean cost of a version's placements of the reference tasks."""
RATIO = "reference_cost_ratio"
"""The same over the cost of the rule of thumb measured beside it, mean over the tasks: below 1 is better than the rule."""
RULE = "reference_rule_ms"
"""Mean cost of the rule's placements, which never change: where this moves, the machine has changed."""
ERROR = "reference_predicted_mape"
"""Mean relative error of the version's own predictions of these costs; only of a version that learnt costs of their batch."""

SET = "reference_set"
"""Tag of a version and of a series: key of the reference set."""
MEASURED = "reference_evaluation"
"""Tag of a version: key of the measurements' rows in the lake."""
BATCH = "reference_batch_size"
"""Tag of a version: training samples per pass over the reference tasks, whatever batch the version learnt costs of."""
DATASET = "reference_dataset"
"""Tag of a version: dataset of the reference set's tables."""

FAILURE = "reference_failure"
"""Tag of a version: why it could not be measured on its reference set."""


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """A version measured on a reference set.

    Attributes:
        key: of the set.
        name: of the set for people.
        dataset: version of its tables.
        tasks: key of its tasks.
        batch_size: training samples per pass.
        evaluation: key of the rows in the lake.
    """

    key: str
    name: str
    dataset: str
    tasks: str
    batch_size: int
    evaluation: str
    metrics: Mapping[str, float]


def is_measured(settings: Settings, version: str, key: str) -> bool:
    """Whether `log_point` has finished for a version and a reference set."""
    return registry.version_tags(settings, version).get(SET) == key


def log_point(settings: Settings, version: str, point: ReferencePoint) -> None:
    """Log the figures of a version on its run, its model, and the series; then the version's tags say so."""
    run, model = registry.run_of(settings, version), registry.model_of(settings, version)
    query = f"select * from evaluations where run_key = '{point.evaluation}'"
    profile = {"dataset": point.dataset, "evaluation": point.evaluation}
    folder = settings.lake_root / "evaluations"
    tasks = make_dataset(point.name[:500], point.key[:36], folder, COLUMNS, profile, sql=query)
    log_input(settings, run, tasks, "reference")
    log_model_metrics(settings, run, model, point.metrics, on=(point.name[:500], point.key[:36]))
    runs.log_metrics(settings, _series(settings, point), point.metrics, step=number_of(version))
    tags = {MEASURED: point.evaluation, DATASET: point.dataset, BATCH: point.batch_size, SET: point.key}
    registry.tag(settings, version, tags)
    if FAILURE in registry.version_tags(settings, version):  # of an earlier attempt
        registry.untag(settings, version, FAILURE)


def _series(settings: Settings, point: ReferencePoint) -> str:
    """The run of a reference set's series of the algorithm, which is created with its first version."""
    tracking = runs.client(settings)
    experiment = experiment_id(tracking, settings)
    for found in tracking.search_runs([experiment], f"tags.`{SET}` = '{point.key}' and tags.series = 'reference'"):
        if found.data.tags.get("algorithm", DEFAULT_ALGORITHM) == settings.algorithm:
            return str(found.info.run_id)
    text = f"Steps are versions. `{COST}` is comparable along the series; `{RULE}` shows drift of the machine."
    tags = {SET: point.key, "series": "reference", "algorithm": settings.algorithm}
    tags |= {"mlflow.note.content": text, "mlflow.source.name": "dreamshard"}
    name = point.name if settings.algorithm == DEFAULT_ALGORITHM else f"{settings.algorithm}: {point.name}"
    run = str(tracking.create_run(experiment, tags=tags, run_name=name).info.run_id)
    tracking.set_terminated(run, "FINISHED")
    return run
