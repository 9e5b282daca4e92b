"""Which process runs a flow run, as labels in Prefect, so that runs of a process that was killed can be ended.

Prefect learns of a crash from the process itself or from its worker; after `kill -9` of a command nobody says anything, and
the flow run and its task would be shown as running for ever.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.states import Crashed

from storage.mlflow_store import process_tags

Result = TypeVar("Result")
Run = TypeVar("Run", FlowRun, TaskRun)

GONE = "its process ended without a word, e.g. by kill -9 or by lack of memory"
ATTEMPT = "dreamshard.attempt"
"""Label: which start of the run the other labels are about; a run that is started again is another process's."""

_UNFINISHED = (StateType.RUNNING, StateType.PENDING)
_PAGE = 200  # the most that Prefect's server returns at once


def labelled(body: Callable[..., Result]) -> Callable[..., Result]:
    """Let a flow's run name the process that runs it."""

    @wraps(body)
    def call(*args: Any, **kwargs: Any) -> Result:
        context = FlowRunContext.get()
        if context is not None and context.flow_run is not None:
            labels: dict[str, Any] = {**process_tags.this_process(), ATTEMPT: context.flow_run.run_count}
            with get_client(sync_client=True) as client:
                client.update_flow_run_labels(context.flow_run.id, labels)
        return body(*args, **kwargs)

    return call


def end_abandoned() -> int:
    """Mark flow runs of processes of this host that are gone as CRASHED on Prefect's server; returns how many there were.

    The tasks of crashed flow runs are marked too, whoever said that the flow run crashed: nobody says it of them.
    """
    with get_client(sync_client=True) as client:
        gone = [run for run in _running(client) if _is_abandoned(run)]
        for run in gone:
            client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)
        for task_run in _unfinished_tasks(client):
            client.set_task_run_state(task_run.id, Crashed(message=GONE), force=True)
    return len(gone)


def _running(client: SyncPrefectClient) -> list[FlowRun]:
    kind = _in_state(StateType.RUNNING)
    return _all(lambda offset: client.read_flow_runs(flow_run_filter=kind, limit=_PAGE, offset=offset))


def _unfinished_tasks(client: SyncPrefectClient) -> list[TaskRun]:
    """Those of crashed flow runs."""
    crashed = _in_state(StateType.CRASHED)
    unfinished = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=list(_UNFINISHED))))
    return _all(
        lambda offset: client.read_task_runs(
            flow_run_filter=crashed, task_run_filter=unfinished, limit=_PAGE, offset=offset
        )
    )


def _in_state(kind: StateType) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[kind])))


def _all(read: Callable[[int], list[Run]]) -> list[Run]:
    """All pages that `read` gives from an offset on."""
    found: list[Run] = []
    while len(page := read(len(found))) == _PAGE:
        found += page
    return found + page


def _is_abandoned(run: FlowRun) -> bool:
    owner, host = run.labels.get(process_tags.PROCESS), run.labels.get(process_tags.HOST)
    if host != process_tags.this_host() or run.labels.get(ATTEMPT) != run.run_count:
        return False
    return not process_tags.is_alive(str(owner))
