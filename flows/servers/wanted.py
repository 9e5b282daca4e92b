"""The deployments that `prefect.yaml` declares, with the setting of the scheduled flows, and as facts to compare."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from flows.servers.names import SCHEDULED
from storage.schedule import Schedule

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A deployment as it is declared.

    Attributes:
        flow: its flow.
        schema: of the flow's parameters, as Prefect draws the form from it.
        declared: its entry in `prefect.yaml`.
        parameters: of its runs; none that is empty.
    """

    flow: Flow[..., Any]
    schema: Mapping[str, Any]
    declared: Mapping[str, Any]
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return str(self.declared["name"])

    @property
    def schedules(self) -> dict[str, DeploymentScheduleCreate]:
        """Its schedules by slug."""
        return {each["slug"]: _schedule(each) for each in self.declared.get("schedules", [])}

    @property
    def triggers(self) -> list[dict[str, Any]]:
        """What starts it besides schedules."""
        return list(self.declared.get("triggers", []))

    def without_setting(self) -> "Wanted":
        """The same as `prefect.yaml` alone declares it."""
        return replace(self, parameters=self.declared.get("parameters", {}))

    def facts(self) -> dict[str, Any]:
        """What a person may edit, as it is to be deployed."""
        limit, pool = self.declared.get("concurrency_limit", {}), self.declared["work_pool"]
        return {
            **self._of_parameters(self.parameters),
            **{f"schedules.{slug}": _schedule_fact(each) for slug, each in self.schedules.items()},
            "description": self.declared["description"],
            "tags": sorted(self.declared["tags"]),
            "concurrency_limit": limit.get("limit"),
            "collision_strategy": limit.get("collision_strategy"),
            "job_variables": pool["job_variables"] or None,
            "work_pool_name": pool["name"],
            "work_queue_name": pool["work_queue_name"],
        }

    def current_facts(self, deployment: DeploymentResponse, slugs: Mapping[str, DeploymentSchedule]) -> dict[str, Any]:
        """The same facts as the server has them."""
        limit, options = deployment.global_concurrency_limit, deployment.concurrency_options
        return {
            **self._of_parameters(deployment.parameters),
            **{f"schedules.{slug}": self._current_schedule(slug, each) for slug, each in slugs.items()},
            "description": deployment.description,
            "tags": sorted(deployment.tags),
            "paused": deployment.paused or None,
            "concurrency_limit": None if limit is None else limit.limit,
            "collision_strategy": None if options is None else options.collision_strategy.value,
            "job_variables": deployment.job_variables or None,
            "work_pool_name": deployment.work_pool_name,
            "work_queue_name": deployment.work_queue_name,
        }

    def _current_schedule(self, slug: str, schedule: DeploymentSchedule) -> dict[str, Any]:
        """The fact of a schedule on the server; Prefect empties its parameters whenever it is paused or resumed."""
        fact, declared = _schedule_fact(schedule), self.schedules.get(slug)
        return fact if schedule.parameters or declared is None else {**fact, "parameters": declared.parameters}

    def _of_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that say more than the flow's defaults; a form fills in defaults and empty texts."""
        defaults = {name: each.get("default") for name, each in self.schema["properties"].items()}
        filled = {name: value for name, value in parameters.items() if value not in (None, "", defaults.get(name))}
        return {f"parameters.{name}": value for name, value in filled.items()}


def declared_deployments(schedule: Schedule) -> Iterator[Wanted]:
    """Every deployment of `prefect.yaml`; those of `SCHEDULED` with the schedule as their parameters."""
    for entry in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]:
        flow: Flow[..., Any] = load_flow_from_entrypoint(entry["entrypoint"])
        more = schedule.parameters() if entry["name"] in SCHEDULED else {}
        yield Wanted(
            flow=flow,
            schema=parameter_schema(flow).model_dump(exclude_unset=True),
            declared=entry,
            parameters={**entry.get("parameters", {}), **more},
        )


def _schedule(entry: Mapping[str, Any]) -> DeploymentScheduleCreate:
    timezone = entry.get("timezone", "UTC")
    timing: SCHEDULE_TYPES = (
        CronSchedule(cron=entry["cron"], timezone=timezone)
        if "cron" in entry
        else IntervalSchedule(interval=timedelta(seconds=entry["interval"]), timezone=timezone)
    )
    return DeploymentScheduleCreate(
        schedule=timing, active=entry["active"], parameters=entry.get("parameters", {}), slug=entry["slug"]
    )


def _schedule_fact(schedule: DeploymentScheduleCreate | DeploymentSchedule) -> dict[str, Any]:
    """A schedule without what the server fills in: the anchor of an interval is the moment it was made."""
    timing = schedule.schedule.model_dump(mode="json", exclude={"anchor_date"}, exclude_none=True)
    return {"timing": timing, "active": schedule.active, "parameters": schedule.parameters}
