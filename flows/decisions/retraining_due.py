"""What a watch need not ask for again: a training that was made, one under way, one that was asked for today and failed.

A retraining is the same as another where it is of the same recipe, tables' source, testbed, devices, memory and tables per
task; which version of the tables it is of is said beside that.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect import get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter

from dreamshard.recipes import Recipe
from dreamshard.testbeds.specs import DEFAULT_SPEC, SPECS
from flows.forms.options import RetrainingOptions
from storage.mlflow_store import registry
from storage.run_records import lineage
from storage.settings import Settings
from storage.store import open_store

EVENT = "dreamshard.tables.changed"
PATIENCE = timedelta(days=1)
"""After which the same retraining is asked for again: it failed, or the event was lost."""

UNDER_WAY = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)
_SAME = ("recipe", "source", "testbed", "num_devices", "memory_gb", "tables_per_task")
_PAGE = 50  # the most events that Prefect's server tells at once


def last_trained(config: Recipe, dataset: str) -> str | None:
    """The dataset that the newest version like `config` was trained on, or None before the first.

    Where a version since the champion, that one included, was trained on `dataset`, it is that: training on from the champion
    would only be the same training again.
    """
    versions = [each for each in lineage.versions(open_store()) if _is_like(each.origin, config)]
    champion = int(registry.champion(Settings.load()) or 0)
    if not any(int(each.version) == champion for each in versions):
        champion = 0
    if any(each.origin.dataset == dataset and int(each.version) >= champion for each in versions):
        return dataset
    return versions[0].origin.dataset if versions else None


@task(name="look for a retraining under way", cache_policy=NO_CACHE)
def under_way(options: RetrainingOptions) -> str | None:
    """The name of a retraining with these options that has been started and has not ended, or None.

    One that failed is none, and one that a schedule will start some day is none either.
    """
    parameters = options.parameters()
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["retrain"])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNDER_WAY))),
            ),
        )
    return next((run.name for run in runs if _has_begun(run) and same(run.parameters, parameters)), None)


@task(name="look for a retraining that was asked for", cache_policy=NO_CACHE)
def asked_for(dataset: str, options: RetrainingOptions) -> datetime | None:
    """When a retraining with these options was last asked for, where that was on `dataset` and within a day, or None."""
    today = EventFilter(
        event=EventNameFilter(name=[EVENT]),
        occurred=EventOccurredFilter.model_validate({"since": datetime.now(UTC) - PATIENCE}),
    )
    parameters = options.parameters()
    with get_client(sync_client=True) as client:
        events = client.read_events(today, limit=_PAGE).events  # newest first
    last = next((event for event in events if same(event.payload["parameters"], parameters)), None)
    return last.occurred if last is not None and last.payload["dataset"] == dataset else None


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two retrainings with these parameters are of the same; an empty field is one that is left out."""
    return all((one.get(name) or None) == (other.get(name) or None) for name in _SAME)


def _has_begun(run: FlowRun) -> bool:
    return not (run.auto_scheduled and run.state_type == StateType.SCHEDULED)


def _is_like(origin: lineage.Origin, config: Recipe) -> bool:
    setting, tasks = origin.setting, config.tasks
    return (
        (origin.recipe, origin.source) == (config.name, config.workload.source)
        and (setting["devices"], setting["tables per task"]) == (tasks.num_devices, tasks.tables_per_task)
        and origin.memory_bytes in (None, tasks.memory_bytes)
        and _can_be(config.testbed, str(setting["testbed"]), str(setting["hardware"]))
    )


def _can_be(name: str, kind: str, hardware: str) -> bool:
    """Whether a testbed of this kind and hardware is the one called `name`, as far as that is known on another machine.

    `auto` and a testbed of one's own may be anything; of `cluster` and `emulated` only the worker knows the devices.
    """
    wanted, _, preset = name.partition(":")
    if wanted not in ("cluster", "emulated", "simulated"):
        return True
    if wanted == "simulated":
        preset = preset or DEFAULT_SPEC
    return kind == wanted and (preset not in SPECS or hardware.endswith(f" {preset}"))
