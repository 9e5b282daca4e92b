"""Prefect's automations against silence: a run whose process is gone, one that ends too late, and runs that nobody takes.

A worker that dies with its host says nothing, and neither does Prefect: its run is shown as running for ever, and `watch`
waits for it. A flow under a worker sends a heartbeat every three minutes (`PREFECT_FLOWS_HEARTBEAT_FREQUENCY`).
"""

from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events import AutomationCore, EventTrigger
from prefect.events.actions import ActionTypes, CancelFlowRun, ChangeFlowRunState
from prefect.events.schemas.automations import Posture

from flows.servers.automations import runs_of, sending
from flows.servers.names import GONE, OVERDUE, WAITING

SILENCE = timedelta(minutes=10)
"""From a run's last heartbeat until it counts as gone: three heartbeats may be lost."""

LONGEST: Mapping[str, timedelta] = {"watch": timedelta(hours=2), "retrain": timedelta(days=1)}
"""From the start of a run until somebody is told; a `watch`, which excludes the next one, is cancelled too."""

LONGEST_WAIT = timedelta(hours=3)
"""From a run that no worker took in time until somebody is told, unless one is taken before."""

_ENDS = frozenset(f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut"))
_HEARTBEAT = "prefect.flow-run.heartbeat"
_MESSAGE = (
    "nothing was heard of its process for {minutes:g} minutes, so its worker or its host is gone; start the worker again, "
    "and the same retraining goes on from its last checkpoint"
)


def on_silence(deployments: Collection[UUID], silence: timedelta = SILENCE) -> AutomationCore:
    """The automation that marks silent runs of the deployments as crashed, which is then told like any failure."""
    trigger = _trigger(
        deployments, after={_HEARTBEAT}, expect={_HEARTBEAT, *_ENDS}, each="prefect.resource.id", within=silence
    )
    message = _MESSAGE.format(minutes=silence.total_seconds() / 60)
    return AutomationCore(
        name=GONE,
        description="Runs of all deployments send heartbeats; one that stopped without ending is marked as crashed.",
        trigger=trigger,
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message, force=False)],
    )


def on_overdue(name: str, deployment: UUID, block: UUID | None) -> AutomationCore:
    """The automation that reacts to runs which take longer than `LONGEST`.

    Args:
        name: of the deployment.
        deployment: its id.
        block: sends the message; None to show it in Prefect's event feed only.
    """
    hours = LONGEST[name].total_seconds() / 3600
    trigger = _trigger(
        [deployment],
        after={"prefect.flow-run.Running"},
        expect=set(_ENDS),
        each="prefect.resource.id",
        within=LONGEST[name],
    )
    is_cancelled = name == "watch"
    then = "it is cancelled, so that the next one can run" if is_cancelled else "it goes on; cancel it if it hangs"
    body = (
        f"a run of {name} has been under way for {hours:g} hours: {{{{ labels['prefect.resource.id'] }}}}; {then}. A file "
        "system or a source that does not answer is a common reason; the run's page in Prefect shows what it did last."
    )
    actions: list[ActionTypes] = [sending(block, f"dreamshard: {name} takes very long", body)]
    return AutomationCore(
        name=OVERDUE[name],
        description=f"Runs when `{name}` has not ended {hours:g} hours after its start (docs/as-tables-change.md).",
        trigger=trigger,
        actions=[*actions, CancelFlowRun()] if is_cancelled else actions,
    )


def on_waiting(name: str, deployment: UUID, block: UUID | None) -> AutomationCore:
    """The automation that tells somebody that no worker takes the runs of a deployment; arguments as for `on_overdue`."""
    hours = LONGEST_WAIT.total_seconds() / 3600
    taken = {"prefect.flow-run.Pending", "prefect.flow-run.Running", *_ENDS}
    trigger = _trigger(
        [deployment],
        after={"prefect.flow-run.Late"},
        expect=taken,
        each="related:deployment:prefect.resource.id",
        within=LONGEST_WAIT,
    )
    body = (
        f"runs of {name} are late, and none was started for {hours:g} hours, so tables may change without a retraining; "
        "start a worker (`dreamshard up`, or `dreamshard worker` on another host), or see on Prefect's page of the work "
        "pool why it takes none."
    )
    return AutomationCore(
        name=WAITING[name],
        description=f"Runs when no worker takes a late run of `{name}` for {hours:g} hours (docs/as-tables-change.md).",
        trigger=trigger,
        actions=[sending(block, f"dreamshard: no worker takes runs of {name}", body)],
    )


def _trigger(
    deployments: Collection[UUID], *, after: set[str], expect: set[str], each: str, within: timedelta
) -> EventTrigger:
    """What fires where an event was followed by none of those that are expected."""
    return EventTrigger(
        after=after,
        expect=expect,
        for_each={each},
        posture=Posture.Proactive,
        threshold=1,
        within=within,
        **runs_of(deployments),
    )
