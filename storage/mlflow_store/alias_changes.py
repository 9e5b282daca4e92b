"""Which version is in use: moves the aliases of the registry and records who changed what, when and why.

Tags of a version: `alias`, `reason`, `decided_by` and `decided_at` of the last change, and `alias_changes`, the JSON of all
changes in order.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from mlflow.entities.model_registry import ModelVersion

from storage.mlflow_store.registry import MODEL, aliases, champion, find, load_placer, tag
from storage.mlflow_store.runs import client
from storage.settings import Settings

Alias = Literal["champion", "challenger", "previous"]

CHANGES_TAG = "alias_changes"
BY_EVALUATION = "evaluation"
"""`AliasChange.by` if no person decided."""


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """A version received an alias.

    Attributes:
        at: time of the change, `YYYY-MM-DD HH:MM:SS UTC`.
        alias: the alias.
        by: user who decided, or `BY_EVALUATION`.
        reason: for people; empty if another version replaced this one.
        replaced_by: version that became champion instead; None otherwise.
    """

    at: str
    alias: Alias
    by: str
    reason: str = ""
    replaced_by: str | None = None

    @property
    def why(self) -> str:
        """The reason in words."""
        return self.reason if self.replaced_by is None else f"replaced by version {self.replaced_by}"

    @property
    def sentence(self) -> str:
        """The change in words."""
        return f"{self.at} {self.alias}, by {self.by}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class ChampionChange:
    """Which version is champion now, and which was before: the same if nothing changed."""

    version: str
    former: str | None


def set_alias(settings: Settings, name: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION) -> None:
    """Point an alias at a version and record why.

    A new champion makes the old one `previous`, and stops being the challenger.

    Raises:
        ValueError: there is no such version.
    """
    registry, model, current = client(settings), find(settings, name), aliases(settings)
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    version, former = str(model.version), current.get("champion")
    if alias == "champion":
        if former is not None and former != version:
            change = AliasChange(at=now, alias="previous", by=by, replaced_by=version)
            _record(settings, find(settings, former), change)
            registry.set_registered_model_alias(MODEL, "previous", former)
        if current.get("challenger") == version:
            registry.delete_registered_model_alias(MODEL, "challenger")
    tag(settings, version, {"reason": reason, "decided_by": by, "decided_at": now})
    _record(settings, model, AliasChange(at=now, alias=alias, by=by, reason=reason))
    registry.set_registered_model_alias(MODEL, alias, version)  # last: whoever sees the alias finds the reason


def make_champion(settings: Settings, name: str, reason: str, by: str) -> ChampionChange:
    """Make a version champion regardless of its evaluation; the former champion becomes `previous`.

    Args:
        name: a version's number or an alias; `previous` undoes the last change.
        reason: recorded on the version, like the user `by`.

    Raises:
        ValueError: there is no such version (the message lists the existing ones), or it cannot place; nothing changes.
    """
    version, former = str(find(settings, name).version), champion(settings)
    if version != former:
        load_placer(version, settings)  # a version that cannot be read must not come into use
        set_alias(settings, version, "champion", reason, by=by)
    return ChampionChange(version=version, former=former)


def history(tags: Mapping[str, str]) -> list[AliasChange]:
    """All changes of a version's alias, oldest first, from its tags."""
    return [AliasChange(**change) for change in json.loads(tags.get(CHANGES_TAG, "[]"))]


def replaced_by_hand(tags: Mapping[str, str]) -> AliasChange | None:
    """The change by which a person put another champion in this version's place; None if it was champion again since."""
    changes = [change for change in history(tags) if change.alias != "challenger"]
    by_hand = changes and changes[-1].alias == "previous" and changes[-1].by != BY_EVALUATION
    return changes[-1] if by_hand else None


def _record(settings: Settings, model: ModelVersion, change: AliasChange) -> None:
    """Set the tags `alias` and `alias_changes`, and the first line of the description; the rest of it stays."""
    registry, version, past = client(settings), str(model.version), history(model.tags)
    if not past or replace(past[-1], at=change.at) != change:  # a retried step is recorded once
        changes = json.dumps([asdict(entry) for entry in (*past, change)])
        registry.set_model_version_tag(MODEL, version, CHANGES_TAG, changes)
    registry.set_model_version_tag(MODEL, version, "alias", change.alias)
    _, blank, rest = (model.description or "").partition("\n\n")
    registry.update_model_version(MODEL, version, description=f"{change.alias}: {change.why}{blank}{rest}")
