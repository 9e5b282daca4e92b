"""Prefect's automations: what starts a retraining as tables change, and what notifies someone that one failed."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import AutomationCore, DeploymentTriggerTypes, EventTrigger
from prefect.events.actions import ActionTypes, DoNothing, SendNotification
from prefect.events.schemas.automations import Automation, Posture
from pydantic import TypeAdapter

from flows.reports.failure_sentence import TEMPLATE
from flows.servers.edits import Edit, Record, merged, record_of
from flows.servers.names import FAILURES

ONCE_IN: Mapping[str, timedelta] = {"watch": timedelta(days=1)}
"""Failures of a flow that runs every 15 minutes are reported once in this time; the first at once."""

_FAILED = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut")
_COMPARED = ("enabled", "description", "trigger", "actions")
_UNORDERED = ("after", "expect", "for_each")

_SUBJECT = "dreamshard: {{ deployment.name }} {{ flow_run.state.name | lower }} ({{ flow_run.name }})"
_BODY = (
    f"{TEMPLATE}\n\n"
    "{{ deployment.name }}{% if flow_run.parameters.source %} of {{ flow_run.parameters.source }}{% endif %}, "
    "{{ flow_run.state.timestamp.strftime('%Y-%m-%d %H:%M UTC') }}\n"
    "{{ flow_run | ui_url }}"
)


def starting(triggers: Iterable[Mapping[str, Any]], deployment: UUID) -> list[AutomationCore]:
    """The automations that start a deployment, of the triggers that `prefect.yaml` declares."""
    automations = []
    for declared in triggers:
        trigger = TypeAdapter(DeploymentTriggerTypes).validate_python(dict(declared))
        trigger.set_deployment_id(deployment)
        automations.append(trigger.as_automation())
    return automations


def on_failure(name: str, deployment: UUID, block: UUID | None) -> AutomationCore:
    """The automation that reacts to failed and crashed runs.

    Args:
        name: of the deployment whose runs it reacts to.
        block: sends the message; None to show the failures in Prefect's event feed only.
    """
    within = ONCE_IN.get(name, timedelta(0))
    each = "related:deployment:prefect.resource.id" if within else "prefect.resource.id"
    trigger = EventTrigger(
        expect=set(_FAILED),
        for_each={each},
        posture=Posture.Reactive,
        threshold=1,
        within=within,
        **runs_of([deployment]),
    )
    whom = "No notification block is configured" if block is None else "Sends the sentence of the failure and a link"
    often = ", at most once a day" if within else ""
    return AutomationCore(
        name=FAILURES[name],
        description=f"Runs when `{name}` fails or crashes{often}. {whom} (docs/as-tables-change.md).",
        trigger=trigger,
        actions=[sending(block, _SUBJECT, _BODY)],
    )


def runs_of(deployments: Iterable[UUID]) -> dict[str, Any]:
    """What a trigger matches: events of flow runs of the deployments."""
    ids = sorted(f"prefect.deployment.{deployment}" for deployment in deployments)
    return {
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.role": "deployment", "prefect.resource.id": ids},
    }


def sending(block: UUID | None, subject: str, body: str) -> ActionTypes:
    """What sends a message; nothing does without a block, and then Prefect's event feed alone shows what happened."""
    return DoNothing() if block is None else SendNotification(block_document_id=block, subject=subject, body=body)


def deploy_automation(
    client: SyncPrefectClient, wanted: AutomationCore, record: Record | None
) -> tuple[Record, list[Edit]]:
    """Create or update an automation; what was edited or deleted in the UI stays so.

    Args:
        record: of its last deployment; None if it was never recorded.
    """
    facts = _facts(wanted)
    found = client.read_automations_by_name(wanted.name)
    current = found[0] if found else None
    if current is None and record is not None:
        return record_of(facts), [Edit(where=f"automation `{wanted.name}`", name="", value=None, deployed=True)]
    if current is None:
        client.create_automation(wanted)
        return record_of(facts), []
    now = _facts(current)
    before = record_of({**now, "enabled": True}) if record is None else record
    result, edits = merged(f"automation `{wanted.name}`", before, now, facts)
    if result != now:
        content = wanted.model_dump(mode="json", exclude={"owner_resource"}) | {
            name: result[name] for name in _COMPARED
        }
        client.update_automation(current.id, AutomationCore.model_validate(content))
    return record_of(facts), edits


def _facts(automation: AutomationCore | Automation) -> dict[str, Any]:
    """What a person may edit, in one form whether it was made here or read from the server."""
    content = automation.model_dump(mode="json", include=set(_COMPARED))
    for name in _UNORDERED:
        if name in content["trigger"]:
            content["trigger"][name] = sorted(content["trigger"][name])
    return content
