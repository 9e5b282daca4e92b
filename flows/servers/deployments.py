"""Creates and updates all deployments on Prefect's server, in one process and without undoing what was edited in its UI.

What was deployed last is kept on the server, as digests in Prefect's variable `dreamshard_deployed`, so that it holds for
everyone who deploys.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, VariableCreate, VariableUpdate
from prefect.client.schemas.objects import ConcurrencyOptions, DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import AutomationCore

from flows.servers import automations, watchdogs
from flows.servers.edits import Edit, Record, merged, record_of
from flows.servers.names import SCHEDULED
from flows.servers.wanted import Wanted, declared_deployments
from storage.schedule import Schedule

VARIABLE = "dreamshard_deployed"
_PAGE = 200  # the most deployments that the server returns at once


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What was deployed.

    Attributes:
        schedules: what the scheduled flows train for, by deployment, with what was edited in the UI.
        edits: what was edited there and stays.
    """

    schedules: Mapping[str, Schedule]
    edits: tuple[Edit, ...]


def deploy_all(schedule: Schedule, block: UUID | None, given: Collection[str] = ()) -> Deployed:
    """Create or update every deployment of `prefect.yaml` and its automations on the server at `PREFECT_API_URL`.

    Args:
        schedule: what `SCHEDULED` train for.
        block: notifies someone of failures.
        given: fields of the schedule that somebody typed just now; they win over what was edited.

    Raises:
        PrefectHTTPStatusError: the server refuses a deployment.
    """
    with get_client(sync_client=True) as client:
        records = _read_records(client)
        existing = _existing(client)
        new_records: dict[str, Record] = {}
        schedules: dict[str, Schedule] = {}
        ids: dict[str, UUID] = {}
        edits: list[Edit] = []
        reacting: list[AutomationCore] = []
        for wanted in declared_deployments(schedule):
            name = wanted.name
            flow = client.create_flow_from_name(wanted.flow.name)
            current = existing.get((flow, name))
            if current is None:
                ids[name] = _create(client, wanted, flow)
                kept: list[Edit] = []
                parameters = wanted.parameters
            else:
                ids[name] = current.id
                record = records.get(name, record_of(wanted.without_setting().facts()))
                record = _overruling(record, given) if name in SCHEDULED else record
                parameters, kept = _update(client, wanted, current, record)
            edits += kept
            new_records[name] = record_of(wanted.facts())
            if name in SCHEDULED:
                schedules[name] = Schedule.of(parameters)
            reacting += automations.starting(wanted.triggers, ids[name])
        for name in SCHEDULED:
            reacting += [
                react(name, ids[name], block)
                for react in (automations.on_failure, watchdogs.on_overdue, watchdogs.on_waiting)
            ]
        for automation in [*reacting, watchdogs.on_silence(ids.values())]:
            new_records[automation.name], kept = automations.deploy_automation(
                client, automation, records.get(automation.name)
            )
            edits += kept
        _write_records(client, {**records, **new_records})
        return Deployed(schedules=schedules, edits=tuple(edits))


def _overruling(record: Record, given: Collection[str]) -> Record:
    """The record with which the fields count as changed since the last deployment."""
    return {**record, **{f"parameters.{name}": "" for name in given}}


def _existing(client: SyncPrefectClient) -> dict[tuple[UUID, str], DeploymentResponse]:
    """All deployments of the server by flow and name."""
    found: list[DeploymentResponse] = []
    while page := client.read_deployments(limit=_PAGE, offset=len(found)):
        found += page
    return {(each.flow_id, each.name): each for each in found}


def _create(client: SyncPrefectClient, wanted: Wanted, flow: UUID) -> UUID:
    facts = wanted.facts()
    strategy = facts["collision_strategy"]
    return client.create_deployment(
        flow_id=flow,
        name=wanted.name,
        version=wanted.flow.version,
        entrypoint=wanted.declared["entrypoint"],
        parameters=dict(wanted.parameters),
        parameter_openapi_schema=dict(wanted.schema),
        enforce_parameter_schema=True,
        schedules=list(wanted.schedules.values()),
        concurrency_limit=facts["concurrency_limit"],
        concurrency_options=None if strategy is None else ConcurrencyOptions(collision_strategy=strategy),
        description=facts["description"],
        tags=facts["tags"],
        job_variables=facts["job_variables"],
        work_pool_name=facts["work_pool_name"],
        work_queue_name=facts["work_queue_name"],
        pull_steps=[],
    )


def _update(
    client: SyncPrefectClient, wanted: Wanted, current: DeploymentResponse, record: Record
) -> tuple[Mapping[str, Any], list[Edit]]:
    """Bring a deployment up to date where something changed; returns its parameters and the edits that stay."""
    slugs = {each.slug: each for each in current.schedules if each.slug is not None}  # others are a person's own
    now = wanted.current_facts(current, slugs)
    facts, edits = merged(wanted.name, record, now, wanted.facts())
    parameters = {name.partition(".")[2]: value for name, value in facts.items() if name.startswith("parameters.")}
    parameters = {**wanted.declared.get("parameters", {}), **parameters}
    filled = {name: value for name, value in now.items() if value is not None}
    plain = {name: value for name, value in facts.items() if not name.startswith("schedules.")}
    is_same = plain == {name: value for name, value in filled.items() if not name.startswith("schedules.")}
    code = (wanted.flow.version, wanted.declared["entrypoint"], wanted.schema)
    if not is_same or code != (current.version, current.entrypoint, current.parameter_openapi_schema):
        strategy = facts.get("collision_strategy")
        update = DeploymentUpdate(
            version=wanted.flow.version,
            entrypoint=wanted.declared["entrypoint"],
            parameters=parameters,
            parameter_openapi_schema=dict(wanted.schema),
            enforce_parameter_schema=True,
            paused=facts.get("paused", False),
            concurrency_limit=facts.get("concurrency_limit"),
            concurrency_options=None if strategy is None else ConcurrencyOptions(collision_strategy=strategy),
            description=facts.get("description"),
            tags=facts.get("tags", []),
            job_variables=facts.get("job_variables", {}),
            work_pool_name=facts.get("work_pool_name"),
            work_queue_name=facts.get("work_queue_name"),
            pull_steps=[],
        )
        client.update_deployment(current.id, update)
    _update_schedules(client, current.id, slugs, wanted.schedules, facts, now)
    return parameters, edits


def _update_schedules(
    client: SyncPrefectClient,
    deployment: UUID,
    slugs: Mapping[str, DeploymentSchedule],
    wanted: Mapping[str, DeploymentScheduleCreate],
    facts: Mapping[str, Any],
    now: Mapping[str, Any],
) -> None:
    """Make, change and delete the schedules whose facts are not those of the server."""
    for slug in {*slugs, *wanted}:
        fact, name = facts.get(f"schedules.{slug}"), f"schedules.{slug}"
        if fact == now.get(name):
            if slug in slugs and fact is not None and slugs[slug].parameters != fact["parameters"]:
                client.update_deployment_schedule(
                    deployment, slugs[slug].id, active=fact["active"], parameters=fact["parameters"]
                )
            continue
        if slug in slugs:
            client.delete_deployment_schedule(deployment, slugs[slug].id)
        if fact is not None:  # differs from the server's, so it is the declared one
            client.create_deployment_schedules(deployment, [wanted[slug]])


def _read_records(client: SyncPrefectClient) -> dict[str, Record]:
    variable = client.read_variable_by_name(VARIABLE)
    return dict(variable.value) if variable is not None and isinstance(variable.value, dict) else {}


def _write_records(client: SyncPrefectClient, records: Mapping[str, Record]) -> None:
    value = {name: dict(record) for name, record in records.items()}
    if client.read_variable_by_name(VARIABLE) is None:
        client.create_variable(VariableCreate(name=VARIABLE, value=value, tags=["dreamshard"]))
    else:
        client.update_variable(VariableUpdate(name=VARIABLE, value=value))


def edited_sentence(edits: Iterable[Edit]) -> str:
    """What stays as it was edited in Prefect, in a sentence; empty if nothing was edited."""
    listed = "; ".join(edit.sentence() for edit in edits)
    return f"edited in Prefect, and kept (an option given again replaces its edit): {listed}" if listed else ""
