"""Looks at a source of tables every quarter of an hour and says when they changed so much that retraining is due.

The event `dreamshard.tables.changed` carries the difference and the parameters of the retraining; an automation, declared at
the retrain deployment in `prefect.yaml`, starts it.
"""

from collections.abc import Mapping
from typing import Any

from prefect import flow, get_client, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import emit_event

from dreamshard.dataset_diff import DatasetDiff, DriftThresholds, compare
from flows import lineage
from flows.form import form
from flows.ingest import ingest_workload
from flows.measuring import lake
from flows.parameters import (
    ChangedShare,
    Emit,
    MemoryGb,
    NumDevices,
    PoolingDrift,
    RecipeName,
    ReuseDrift,
    Seed,
    Source,
    TablesPerTask,
    TestbedName,
    configure,
)
from flows.report import markdown_table
from storage import registry
from storage.settings import Settings

EVENT = "dreamshard.tables.changed"
SHOWN = 100  # tables in the artifact
UNDER_WAY = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)


@form
@flow(name="watch", persist_result=True, result_serializer="json")
def watch(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    source: Source = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
    pooling_drift: PoolingDrift = 0.1,
    reuse_drift: ReuseDrift = 0.1,
    changed_share: ChangedShare = 0.0,
    emit: Emit = True,
) -> dict[str, Any]:
    """Source -> what changed since the last training -> an event where it matters."""
    given = {
        "recipe": recipe,
        "seed": seed,
        "testbed": testbed,
        "source": source,
        "num_devices": num_devices,
        "memory_gb": memory_gb,
        "tables_per_task": tables_per_task,
    }
    config = configure(
        recipe,
        testbed=testbed,
        source=source,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
    )
    dataset = ingest_workload(config.workload).dataset
    trained = last_trained(config.name, config.workload.source, dataset)
    thresholds = DriftThresholds(pooling=pooling_drift, reuse=reuse_drift, share=changed_share)
    diff = difference(trained, dataset, thresholds)
    pending = retraining_under_way(given) if diff.matters else None
    due = diff.matters and pending is None
    outcome = {
        "dataset": dataset,
        "trained": trained,
        "source": config.workload.source,
        "retraining": _in_words(diff, pending, given),
        "emitted": emit and due,
        **diff.payload(),
    }
    publish(diff, outcome)
    if emit and due:
        say_changed(outcome, given)
    return {**outcome, "table": diff.rows(SHOWN)}


def last_trained(recipe: str, source: str, dataset: str) -> str | None:
    """The dataset that the newest version of this recipe and source was trained on, or None before the first.

    Where a version since the champion, that one included, was trained on `dataset`, it is that: training on from the champion
    would only be the same training again.
    """
    versions = [each for each in lineage.versions() if (each.origin.recipe, each.origin.source) == (recipe, source)]
    champion = int(registry.champion(Settings.load()) or 0)
    if not any(int(each.version) == champion for each in versions):
        champion = 0
    if any(each.origin.dataset == dataset and int(each.version) >= champion for each in versions):
        return dataset
    return versions[0].origin.dataset if versions else None


@task(name="compare datasets", cache_policy=NO_CACHE)
def difference(trained: str | None, dataset: str, thresholds: DriftThresholds) -> DatasetDiff:
    """What changed from the dataset that was trained on to the one there is now."""
    before = lake().read_dataset(trained) if trained in lake().dataset_versions() else None
    diff = compare(before, lake().read_dataset(dataset), thresholds)
    get_run_logger().info("dataset %s beside %s: %s", dataset, trained or "none", diff.sentence)
    return diff


@task(name="look for a retraining under way", cache_policy=NO_CACHE)
def retraining_under_way(parameters: Mapping[str, Any]) -> str | None:
    """The name of a retraining of the same recipe and source that has been started and has not ended, or None.

    One that failed is none, so that the next look asks for it again; one that a schedule will start some day is none either.
    """
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["retrain"])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNDER_WAY))),
            ),
        )
    return next((run.name for run in runs if _is_of(run, parameters)), None)


def _is_of(run: FlowRun, parameters: Mapping[str, Any]) -> bool:
    waiting = run.auto_scheduled and run.state_type == StateType.SCHEDULED
    same = all(run.parameters.get(name) == parameters[name] for name in ("recipe", "source"))
    return same and not waiting


def say_changed(outcome: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Emit the event; `payload.parameters` are those of the retraining."""
    resource = {
        "prefect.resource.id": f"dreamshard.tables.{outcome['dataset']}",
        "prefect.resource.name": str(outcome["source"]),
        "dreamshard.recipe": str(parameters["recipe"]),
    }
    emit_event(EVENT, resource, payload={**outcome, "parameters": dict(parameters)})


def publish(diff: DatasetDiff, outcome: Mapping[str, Any]) -> None:
    """The difference as an artifact of the flow run."""
    rows = diff.rows(SHOWN)
    left = len(diff.changes) - len(rows)
    parts = [
        f"# {outcome['source']}",
        f"**{diff.sentence}**",
        f"Dataset {outcome['dataset']}, last trained on {outcome['trained'] or 'none'}. {outcome['retraining']}",
        markdown_table(rows),
        f"... and {left} more" if left else "",
    ]
    create_markdown_artifact("\n\n".join(filter(None, parts)), key="dreamshard-tables", description=diff.sentence)


def _in_words(diff: DatasetDiff, pending: str | None, parameters: Mapping[str, Any]) -> str:
    if not diff.matters:
        return "Nothing needs to be trained."
    if pending is not None:
        return f"Retraining {pending} is under way."
    said = ", ".join(f"{name} {value}" for name, value in parameters.items() if value is not None)
    return f"Retraining is due: {said}."
