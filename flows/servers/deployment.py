"""Puts everything on Prefect's server: the work pool, what `prefect.yaml` declares for each model, automations."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from uuid import UUID

import yaml
from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings

from dreamshard.recipes import recipe
from dreamshard.workloads import known_as
from flows.forms.options import RetrainingOptions
from flows.runtime.run_locks import REGISTRY
from storage.run_records.trainings import model_name

PROJECT = Path(__file__).resolve().parents[2]
DECLARED = Path(__file__).with_name("prefect.yaml")
POOL = "dreamshard"


def deploy(options: RetrainingOptions, notify: str | None, server: str) -> dict[str, dict[str, Any]]:
    """Create or update everything on a server; paused schedules, work queues and edited automations stay.

    Args:
        options: those that are set change the setting of their model; without any, all models that are deployed stay.
        notify: `TYPE/NAME` of a notification block, which reports failed and late retrainings; None for nobody.
        server: address of Prefect's API.

    Returns:
        The setting of each model that was deployed.

    Raises:
        ValueError: there is no such block, or the options name none of several models, or by chance that of other tables.
        RuntimeError: Prefect refuses a deployment.
    """
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        block = None
        if notify is not None:
            kind, _, name = notify.partition("/")
            try:
                block = client.read_block_document_by_name(name, kind).id
            except ObjectNotFound as error:
                raise ValueError(
                    f"Prefect has no notification block {notify}; make one on its page Blocks, and give its TYPE/NAME, such "
                    "as slack-webhook/team"
                ) from error
        with suppress(ObjectAlreadyExists):  # of whatever type, with whatever settings
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        client.upsert_global_concurrency_limit_by_name(REGISTRY, 1)
        settings, known = settings_of(client, options), {each.id: each for each in client.read_deployments()}
        for model, setting in settings.items():
            _deploy_flows(model, setting)
        for deployment in client.read_deployments():
            schema = deployment.parameter_openapi_schema or {}
            for field in schema.get("properties", {}).values():
                if field.get("default", ...) is None:  # a run's page would fill in null, which the server refuses
                    del field["default"]
            before = known.get(deployment.id, deployment)
            kept = {name: getattr(before, name) for name in ("work_pool_name", "work_queue_name")}
            client.update_deployment(deployment.id, DeploymentUpdate(parameter_openapi_schema=schema, **kept))
        for automation in automations(block):
            same = client.read_automations_by_name(automation.name)
            if not same:
                automation.create()
            elif notify is not None:
                client.update_automation(same[0].id, automation)
    return settings


def settings_of(client: SyncPrefectClient, options: RetrainingOptions) -> dict[str, dict[str, Any]]:
    """The setting of each model to deploy, from the server and the options."""
    retrainings = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"])))
    known = {retraining.name: retraining.parameters for retraining in retrainings}
    given = options.model_dump(exclude_unset=True, exclude_none=True)
    given |= {name: known_as(given[name]) for name in ("source", "batches", "profiles") if name in given}
    if not given and known:
        return known
    source = given.get("source")
    if not (options.model or source) and len(known) > 1:
        raise ValueError(f"the options are of one model, and there are {', '.join(known)}; give --model")
    usual = model_name(source or recipe(options.recipe).workload.source)
    model = options.model or (usual if source or not known else next(iter(known)))
    before = known.get(model, {})
    if source and not options.model and before.get("source", source) != source:
        raise ValueError(
            f"model {model} has tables of {before['source']}; give --model {model} if {source} replaces them, otherwise "
            "another name"
        )
    return {model: before | given | {"model": model}}


def automations(block: UUID | None) -> list[Automation]:
    """The automations of `automations.yaml`; without a block, the one that only marks runs."""
    declared = yaml.safe_load(DECLARED.with_name("automations.yaml").read_text(encoding="utf-8"))
    for automation in declared[1:]:
        automation["actions"][0]["block_document_id"] = block
    return [Automation.model_validate(automation) for automation in declared[: None if block else 1]]


def _deploy_flows(model: str, setting: Mapping[str, Any]) -> None:
    """Deploy what `prefect.yaml` declares; `MODEL` is the model's name, and its flows get the fields of its setting."""
    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    for entry in declared["deployments"]:
        if entry["name"] != "MODEL":
            continue
        fields = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False).parameters.properties
        values = {
            name: value for name, value in setting.items() if name in fields.keys() - {*entry.get("parameters", ())}
        }
        given = {name: setting.get(value) for name, value in entry.pop("parameters", {}).items()}
        entry |= {
            "name": model,
            "parameters": values | {name: value for name, value in given.items() if value is not None},
        }
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(declared, file)
        file.flush()
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
        done = subprocess.run(command, cwd=PROJECT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise RuntimeError(f"`prefect deploy --all` failed: {last}")
