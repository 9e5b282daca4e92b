"""What people edited in Prefect's UI since the last deployment, and how it stays: a comparison of three states.

The states are what was deployed last, what the server has now and what is to be deployed. Facts are JSON values by name, as
`parameters.source` or `schedules.nightly`; None and an absent fact are the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dreamshard.files.digests import digest

Facts = Mapping[str, Any]
Record = Mapping[str, str]
"""Digest of each fact as it was to be deployed; short, since Prefect's variables hold 5,000 characters."""

_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A fact that was edited in the UI and stays.

    Attributes:
        where: name of the deployment or automation.
        value: as edited.
        deployed: as it would be deployed otherwise.
    """

    where: str
    name: str
    value: Any
    deployed: Any

    def sentence(self) -> str:
        """The edit for people, as `retrain: memory_gb 4 (deployed: 2)`."""
        kind, _, name = self.name.partition(".")
        if kind == "parameters":
            value, deployed = ("empty" if each is None else each for each in (self.value, self.deployed))
            return f"{self.where}: {name} {value} (deployed: {deployed})"
        what = f"{self.where}: schedule {name}" if kind == "schedules" else self._plain_name
        if self.value is None:
            return f"{what} deleted"
        return f"{what} paused" if kind == "schedules" and not self.value["active"] else what

    @property
    def _plain_name(self) -> str:
        return ": ".join(filter(None, (self.where, self.name)))


def record_of(wanted: Facts) -> Record:
    """The record to keep of a deployment, for the next comparison."""
    return {name: _digest(value) for name, value in wanted.items() if value is not None}


def merged(where: str, record: Record, current: Facts, wanted: Facts) -> tuple[dict[str, Any], list[Edit]]:
    """The facts to deploy, and the edits among them.

    A fact that somebody edited since the last deployment stays, unless what is to be deployed changed since then too.

    Args:
        where: name of the deployment or automation.
        record: `record_of` what was deployed last.
        current: what the server has.
    """
    facts: dict[str, Any] = {}
    edits: list[Edit] = []
    absent = _digest(None)
    for name in dict.fromkeys((*wanted, *current)):
        now, new, before = current.get(name), wanted.get(name), record.get(name, absent)
        is_edited, has_changed = _digest(now) != before, _digest(new) != before
        keep = is_edited and not has_changed
        value = now if keep else new
        if keep:
            edits.append(Edit(where=where, name=name, value=now, deployed=new))
        if value is not None:
            facts[name] = value
    return facts, edits


def _digest(value: Any) -> str:
    return digest(json.dumps(_plain(value), sort_keys=True), _DIGITS)


def _plain(value: Any) -> Any:
    """The value with 4.0 as 4, since a form may write either."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
