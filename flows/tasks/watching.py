"""Prefect tasks that find out whether a retraining is due: tables compared, runs under way, events of the last day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from prefect import get_client, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter

from dreamshard.workloads.dataset_diff import DatasetDiff, DriftThresholds, diff_datasets
from flows.decisions.retraining_due import is_same_retraining
from flows.forms.options import RetrainingOptions
from flows.reports.failure_sentence import failure_sentence
from storage.store import Store

EVENT = "dreamshard.tables.changed"
PATIENCE = timedelta(days=1)
"""Time after which the same retraining is requested again: it failed, or the event was lost."""

TRIES = 3
"""How often within `PATIENCE` one is requested whose process is killed each time."""

UNDER_WAY = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)
_PAGE = 50  # the most events that Prefect's server returns at once
_LATEST = 200  # runs of `retrain` that are looked at for failures, and the most runs that the server returns at once
_LONGEST_START = timedelta(hours=1)  # of a run's process; an image may have to be fetched first


@dataclass(frozen=True, kw_only=True)
class Failing:
    """Retrainings that failed one after another, and none that succeeded since.

    Attributes:
        since: when the first of them ended.
        until: when the last one ended.
        count: how many they are.
        run: name of the last one.
        is_crash: whether the last one crashed: its host or its servers went away, or something killed it.
        message: what was wrong with the last one, in a sentence.
    """

    since: datetime
    until: datetime
    count: int
    run: str
    is_crash: bool
    message: str

    def sentence(self) -> str:
        """The failures for people."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"Retraining has been failing since {self.since:%Y-%m-%d %H:%M} UTC ({times}, last {self.run}): {self.message}"


@task(name="compare datasets", cache_policy=NO_CACHE)
def compare_datasets(store: Store, trained: str | None, dataset: str, thresholds: DriftThresholds) -> DatasetDiff:
    """What changed between the dataset of the last training and the current one."""
    before = store.lake.read_dataset(trained) if trained in store.lake.dataset_versions() else None
    diff = diff_datasets(before, store.lake.read_dataset(dataset), thresholds)
    get_run_logger().info("dataset %s compared with %s: %s", dataset, trained or "none", diff.sentence)
    return diff


@task(name="look for a retraining under way", cache_policy=NO_CACHE)
def find_running(options: RetrainingOptions) -> str | None:
    """The name of a flow run of the same retraining that has started and not ended, or None.

    Failed runs do not count, nor do those that a schedule will start some day, nor those that a worker took without starting
    them: it is gone.
    """
    runs: list[FlowRun] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["retrain"])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNDER_WAY)))),
            limit=_LATEST,
            offset=len(runs),
        ):
            runs += page
    parameters = options.parameters()
    running = (run.name for run in runs if _has_begun(run) and is_same_retraining(run.parameters, parameters))
    return next(running, None)


@task(name="look for a requested retraining", cache_policy=NO_CACHE)
def find_requests(dataset: str, options: RetrainingOptions) -> list[datetime]:
    """When the same retraining was requested within a day, newest first, since that was last done on another dataset."""
    parameters = options.parameters()
    same = [event for event in _requests() if is_same_retraining(event.payload["parameters"], parameters)]
    return [event.occurred for event in takewhile(lambda event: event.payload["dataset"] == dataset, same)]


def is_due_again(requests: Sequence[datetime], failing: Failing | None) -> bool:
    """Whether to request it again at once: the one that was requested last crashed, and so few did that the next may not."""
    is_cut_off = failing is not None and failing.is_crash and failing.until > requests[0]
    return is_cut_off and len(requests) < TRIES


def _requests() -> list[Event]:
    """Requests of a day, newest first."""
    now = datetime.now(UTC)
    wanted = EventFilter(
        event=EventNameFilter(name=[EVENT]),
        occurred=EventOccurredFilter.model_validate({"since": now - PATIENCE}),
    )
    with get_client(sync_client=True) as client:
        return list(client.read_events(wanted, limit=_PAGE).events)


@task(name="look for failed retrainings", cache_policy=NO_CACHE)
def find_failures(options: RetrainingOptions) -> Failing | None:
    """The failed and crashed runs of the same retraining since its last success, or None if the last one succeeded."""
    ended = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED]
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["retrain"])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ended))),
            sort=FlowRunSort.END_TIME_DESC,
            limit=_LATEST,
        )
    parameters = options.parameters()
    failed: list[FlowRun] = []
    for run in runs:
        if not is_same_retraining(run.parameters, parameters):
            continue
        if run.state_type == StateType.COMPLETED:
            break
        failed.append(run)
    if not failed:
        return None
    last, first = failed[0], failed[-1]
    message = failure_sentence((last.state.message if last.state else None) or f"it ended {last.state_name}")
    now = datetime.now(UTC)
    return Failing(
        since=first.end_time or now,
        until=last.end_time or now,
        count=len(failed),
        run=last.name,
        is_crash=last.state_type == StateType.CRASHED,
        message=" ".join(message.split()),
    )


def _has_begun(run: FlowRun) -> bool:
    if run.state_type == StateType.PENDING and run.state is not None:
        return datetime.now(UTC) - run.state.timestamp < _LONGEST_START
    return not (run.auto_scheduled and run.state_type == StateType.SCHEDULED)
