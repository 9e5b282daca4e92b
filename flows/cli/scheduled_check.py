"""What `dreamshard doctor` says about the scheduled flows: what they retrain for, where that comes from, who is notified."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.cli.checks import Check, check
from flows.servers import running
from flows.servers.names import FAILURES, SCHEDULED
from flows.servers.scheduled_setting import Origin, complete, settled
from storage import login
from storage.schedule import Schedule

_UNSET = "`dreamshard up --source ... --devices ... --memory-gb ...` sets it"


@dataclass(frozen=True, kw_only=True)
class _Api:
    """Prefect's API, asked without Prefect, which takes seconds to load."""

    address: str
    login: str | None

    def asked(self, path: str) -> list[dict[str, Any]]:
        """What a filter finds; nothing where the server does not answer, which another check says.

        Raises:
            httpx.HTTPStatusError: the server refuses the login.
        """
        name, _, password = (self.login or "").partition(":")
        auth = (name, password) if self.login else None
        try:
            answer = httpx.post(f"{self.address.rstrip('/')}/{path}", json={}, timeout=10.0, auth=auth)
        except httpx.HTTPError:
            return []
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            answer.raise_for_status()
        return list(answer.json()) if answer.status_code == httpx.codes.OK else []


def scheduled(home: Path, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """The setting of the scheduled flows field by field, what Prefect has instead, and who is notified of failures."""
    try:
        schedule, origins = settled({}, home, environ)
    except ValueError as error:
        found, _, advice = str(error).rpartition("; ")
        return [check("scheduled flows", "missing", found, advice)]
    address = _address(home, environ)
    api = None if address is None else _Api(address=address, login=environ.get(login.LOGIN) or login.kept(home))
    deployed, more = _asked(api) if api is not None else (None, [])
    checks = [_field(origin, deployed) for origin in origins if _is_set(origin, deployed)]
    if not checks:
        checks = [check("scheduled flows", "optional", "the recipe's own tables, which never change", _UNSET)]
    elif schedule.source is None and not any("source" in each for each in (deployed or {}).values()):
        found = "no source: the recipe's own tables, which never change"
        checks.append(check("scheduled source", "optional", found, _UNSET))
    return [*checks, *more]


def _asked(api: _Api) -> tuple[dict[str, dict[str, Any]] | None, list[Check]]:
    """What Prefect has for the fields, and who is notified of failures; or that it refuses the login."""
    try:
        deployed = _deployed(api)
        return deployed, [] if deployed is None else [_told(api)]
    except httpx.HTTPStatusError as error:
        refusal = login.refusal(error, {} if api.login is None else {login.LOGIN: api.login})
        found, _, advice = str(refusal).rpartition("; ")
        return None, [check("Prefect login", "missing", found, advice)]


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
    return f"{servers.prefect}/api" if servers is not None and servers.alive else None


def _deployed(api: _Api) -> dict[str, dict[str, Any]] | None:
    """What the server has for the fields of the schedule, by deployment; None if it does not answer or has none."""
    found = api.asked("deployments/filter")
    parameters = {each["name"]: each["parameters"] for each in found if each["name"] in SCHEDULED}
    return {name: complete(Schedule.of(each)).parameters() for name, each in parameters.items()} or None


def _told(api: _Api) -> Check:
    automations = {each["name"]: each for each in api.asked("automations/filter") if each["name"] in FAILURES.values()}
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
