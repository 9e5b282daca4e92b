"""What `dreamshard doctor` says about the scheduled flows: what they retrain for, where that comes from, who is notified."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from flows.cli.checks import Check, check
from flows.servers import running
from flows.servers.names import FAILURES, SCHEDULED
from flows.servers.scheduled_setting import Origin, complete, settled
from storage.schedule import Schedule

_UNSET = "`dreamshard up --source ... --devices ... --memory-gb ...` sets it"


def _answer(address: str, path: str) -> list[dict[str, Any]]:
    """What a filter of Prefect's API finds; nothing if the server does not answer, which another check says."""
    headers = json.loads(os.environ.get("PREFECT_CLIENT_CUSTOM_HEADERS", "{}"))  # a proxy's login
    try:
        answer = httpx.post(f"{address.rstrip('/')}/{path}", json={}, timeout=10.0, headers=headers)
    except httpx.HTTPError:
        return []
    return list(answer.json()) if answer.status_code == httpx.codes.OK else []


def scheduled(home: Path, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """The setting of the scheduled flows field by field, what Prefect has instead, and who is notified of failures."""
    try:
        schedule, origins = settled({}, home, environ)
    except ValueError as error:
        found, _, advice = str(error).rpartition("; ")
        return [check("scheduled flows", "missing", found, advice)]
    address = _address(home, environ)
    deployed = None if address is None else _deployed(address)
    checks = [_field(origin, deployed) for origin in origins if _is_set(origin, deployed)]
    if not checks:
        checks = [check("scheduled flows", "optional", "the recipe's own tables, which never change", _UNSET)]
    elif schedule.source is None and not any("source" in each for each in (deployed or {}).values()):
        found = "no source: the recipe's own tables, which never change"
        checks.append(check("scheduled source", "optional", found, _UNSET))
    return checks if address is None or deployed is None else [*checks, _told(address)]


def _is_set(origin: Origin, deployed: Mapping[str, Mapping[str, Any]] | None) -> bool:
    return origin.value is not None or any(origin.field.name in each for each in (deployed or {}).values())


def _field(origin: Origin, deployed: Mapping[str, Mapping[str, Any]] | None) -> Check:
    name, what = origin.field.name, f"scheduled {origin.field.option.removeprefix('--').replace('-', ' ')}"
    found = f"{origin.value} ({origin.found})" if origin.value is not None else origin.found
    others = {
        flow: parameters.get(name)
        for flow, parameters in (deployed or {}).items()
        if parameters.get(name) != origin.value
    }
    if not others:
        return check(what, "ok", found)
    in_prefect = ", ".join(f"{flow} has {'none' if value is None else value}" for flow, value in others.items())
    advice = f"edited in Prefect, or not deployed yet; a changed {origin.field.option} of `up` or `deploy` replaces it"
    return check(what, "other", f"{found}; in Prefect {in_prefect}", advice)


def _address(home: Path, environ: Mapping[str, str]) -> str | None:
    """Prefect's API: of the environment, else of an `up` of this home."""
    if address := environ.get("PREFECT_API_URL"):
        return address
    servers = running.find(home)
    return f"{servers.prefect}/api" if servers is not None else None


def _deployed(address: str) -> dict[str, dict[str, Any]] | None:
    """What the server has for the fields of the schedule, by deployment; None if it does not answer or has none."""
    found = _answer(address, "deployments/filter")
    parameters = {each["name"]: each["parameters"] for each in found if each["name"] in SCHEDULED}
    return {name: complete(Schedule.of(each)).parameters() for name, each in parameters.items()} or None


def _told(address: str) -> Check:
    automations = {
        each["name"]: each for each in _answer(address, "automations/filter") if each["name"] in FAILURES.values()
    }
    sending = [each for each in automations.values() if each["enabled"] and _sends(each)]
    if len(sending) == len(FAILURES):
        return check("failed retrainings", "ok", "somebody is notified (Prefect's page Automations)")
    advice = (
        "set DREAMSHARD_NOTIFY to mailtos://USER:PASSWORD@SMTP-HOST?to=team@example.com, https://HOST/WEBHOOK or TYPE/NAME "
        "of a notification block, and start `dreamshard up` again"
    )
    silent = [flow for flow, name in FAILURES.items() if name not in {each["name"] for each in sending}]
    return check("failed retrainings", "optional", f"nobody is notified of failures of {' and '.join(silent)}", advice)


def _sends(automation: Mapping[str, Any]) -> bool:
    return any(action["type"] != "do-nothing" for action in automation["actions"])
