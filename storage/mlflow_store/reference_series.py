"""Costs of versions on a reference set: metrics of each version's run, comparable between versions of the set."""

from collections.abc import Mapping
from dataclasses import dataclass

from storage.mlflow_store import datasets, registry, runs
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
"""Tag of a version: key of the reference set."""
FAILURE = "reference_failure"
"""Tag of a version: why it could not be measured on its reference set."""


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """A version measured on a reference set.

    Attributes:
        key: of the set.
        name: of the set for people.
        dataset: version of its tables.
        batch_size: training samples per pass.
        evaluation: key of the rows in the lake.
    """

    key: str
    name: str
    dataset: str
    batch_size: int
    evaluation: str
    metrics: Mapping[str, float]


def is_measured(settings: Settings, version: str, key: str) -> bool:
    """Whether `log_point` has finished for a version and a reference set."""
    return registry.version_tags(settings, version).get(SET) == key


def log_point(settings: Settings, version: str, point: ReferencePoint) -> None:
    """Log the figures of a version on its run and its model; then the version's tags say so."""
    run, model = registry.run_of(settings, version), registry.model_of(settings, version)
    datasets.log_tasks(settings, run, point.name, point.key, point.evaluation, "reference")
    runs.log_metrics(settings, run, point.metrics, model=model)
    runs.log_params(settings, run, {"reference_batch_size": point.batch_size})
    tags = {"reference_evaluation": point.evaluation, "reference_dataset": point.dataset, FAILURE: None, SET: point.key}
    registry.tag(settings, version, tags)
