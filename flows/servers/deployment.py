"""Puts everything on Prefect's server: the work pool, what `prefect.yaml` declares, the team's setting, automations."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.automations import Automation, ChangeFlowRunState, EventTrigger, Posture, SendNotification
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.forms.form import write_setting
from flows.runtime.run_locks import REGISTRY

PROJECT = Path(__file__).resolve().parents[2]
POOL = "dreamshard"

SILENCE = timedelta(minutes=10)
"""From a run's last heartbeat, of which each running flow sends one every three minutes, until it counts as gone."""

LATE = timedelta(hours=3)
"""From a run that no worker took in time until the notification."""

ONCE_IN = timedelta(hours=6)
"""Failures of one deployment are reported once in this time; `watch` would otherwise fail every 15 minutes."""

_ENDS = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")}
_HEARTBEAT = "prefect.flow-run.heartbeat"
_OURS: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": "prefect.tag.dreamshard"}
_SCHEDULED: dict[str, str | list[str]] = {
    "prefect.resource.role": "flow",
    "prefect.resource.name": ["retrain", "watch"],
}
_MESSAGE = (
    "its process has sent no heartbeat for 10 minutes, so its worker or host is gone; start the worker, and the same "
    "retraining goes on from its last checkpoint"
)


def deploy(setting: Mapping[str, Any], notify: str | None, server: str) -> None:
    """Create or update everything on a server; paused schedules and edited automations stay.

    Args:
        setting: fields of the team's setting to change.
        notify: `TYPE/NAME` of a notification block, which reports failed and late retrainings; None for nobody.
        server: address of Prefect's API.

    Raises:
        ValueError: there is no such block, or a field of the setting is wrong.
        RuntimeError: Prefect refuses a deployment.
    """
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        block = None if notify is None else _block(client, notify)
        with suppress(ObjectAlreadyExists):  # of whatever type, with whatever settings
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        client.upsert_global_concurrency_limit_by_name(REGISTRY, 1)
        _deploy_flows()
        write_setting(setting)
        for automation in automations(block):
            known = client.read_automations_by_name(automation.name)
            if not known:
                automation.create()
            elif notify is not None:
                client.update_automation(known[0].id, automation)


def automations(block: UUID | None, silence: timedelta = SILENCE, late: timedelta = LATE) -> list[Automation]:
    """The automations against failure and silence; without a block, the one that only marks runs."""
    lost = EventTrigger(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *_ENDS},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        within=silence,
        match_related=_OURS,
    )
    crashed = ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=_MESSAGE, force=False)
    marking = Automation(name="dreamshard: a run's process is gone", trigger=lost, actions=[crashed])
    if block is None:
        return [marking]
    failed = EventTrigger(
        expect={f"prefect.flow-run.{name}" for name in ("Failed", "Crashed", "TimedOut")},
        for_each={"related:deployment:prefect.resource.id"},
        posture=Posture.Reactive,
        within=ONCE_IN,
        match_related=_SCHEDULED,
    )
    waiting = EventTrigger(
        after={"prefect.flow-run.Late"},
        expect={"prefect.flow-run.Pending", "prefect.flow-run.Running", *_ENDS},
        for_each={"related:deployment:prefect.resource.id"},
        posture=Posture.Proactive,
        within=late,
        match_related=_SCHEDULED,
    )
    telling_failed = SendNotification(
        block_document_id=block,
        subject="dreamshard: {{ flow.name }} {{ flow_run.state.name | lower }} ({{ flow_run.name }})",
        body="{{ flow_run.state.message }}\n\n{{ flow_run | ui_url }}",
    )
    telling_late = SendNotification(
        block_document_id=block,
        subject="dreamshard: no worker takes scheduled runs",
        body="runs of retrain or watch are late, and no worker started one; start `dreamshard up` or `dreamshard worker`",
    )
    return [
        marking,
        Automation(name="dreamshard: a scheduled run failed", trigger=failed, actions=[telling_failed]),
        Automation(name="dreamshard: no worker takes scheduled runs", trigger=waiting, actions=[telling_late]),
    ]


def _block(client: SyncPrefectClient, notify: str) -> UUID:
    kind, _, name = notify.partition("/")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound as error:
        raise ValueError(
            f"Prefect has no notification block {notify}; make one on its page Blocks, and give its TYPE/NAME, such as "
            "slack-webhook/team"
        ) from error


def _deploy_flows() -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise RuntimeError(f"`prefect deploy --all` failed: {last}")
