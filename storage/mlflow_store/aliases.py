"""Moves the aliases of versions, and records on each version why, by whom and when.

The tags `reason`, `decided_by` and `decided_at` are of the last decision on a version. The alias moves last: whoever sees it
finds the reason. A caller holds the registry's lock.
"""

import time
from dataclasses import dataclass
from typing import Literal

from storage.mlflow_store.registry import (
    DEFAULT,
    PROVISIONAL,
    TRYOUT,
    Line,
    line_of,
    lines,
    load_placer,
    resolve,
    tag,
)
from storage.mlflow_store.runs import client
from storage.mlflow_store.version_names import VersionReference
from storage.settings import Settings

Alias = Literal["champion", "challenger"]

BY_EVALUATION = "evaluation"
"""Tag `decided_by` of a version that no person decided on."""
REPLACED = "replaced_at"
"""Tag of a former champion: when a person put another version in its place."""


@dataclass(frozen=True, kw_only=True)
class ChampionChange:
    """Which version is champion of its topology now, and which was before: the same if nothing changed."""

    version: str
    former: str | None
    topology: str


def set_alias(
    settings: Settings, name: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION, provisional: str = ""
) -> None:
    """Point an alias of the version's registered model at it.

    A new champion makes the old one `previous` and stops being the challenger. It takes over as what an alias or a number
    alone is of if there was none, if a person chose it, or if its costs are measured and the other's are not.

    Args:
        by: the user who decided.
        provisional: why a champion is provisional; empty if it is not.

    Raises:
        ValueError: there is no such version.
    """
    version = resolve(settings, name)
    line, registry, number = line_of(settings, version), client(settings), VersionReference.of(version).name
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    decision = {"reason": reason, "decided_by": by, "decided_at": now, TRYOUT: None}
    if alias == "challenger":
        tag(settings, version, decision)
        registry.set_registered_model_alias(line.name, "challenger", number)
        return
    tag(settings, version, {**decision, PROVISIONAL: provisional or None, REPLACED: None})
    if line.champion not in (None, version):
        if by != BY_EVALUATION:
            tag(settings, str(line.champion), {REPLACED: now})
        registry.set_registered_model_alias(line.name, "previous", VersionReference.of(str(line.champion)).name)
    if line.aliases.get("challenger") == version:
        registry.delete_registered_model_alias(line.name, "challenger")
    registry.set_registered_model_alias(line.name, "champion", number)
    _make_default(settings, line, by_hand=by != BY_EVALUATION)


def make_champion(settings: Settings, name: str, reason: str, by: str) -> ChampionChange:
    """Make a version champion regardless of its evaluation; `previous` undoes that.

    Args:
        reason: recorded on the version, like the user `by`.

    Raises:
        ValueError: there is no such version, or it cannot place; nothing changes.
    """
    version = resolve(settings, name)
    line = line_of(settings, version)
    if version != line.champion or not line.is_default:
        load_placer(version, settings)  # a version that cannot be read must not come into use
        set_alias(settings, version, "champion", reason, by=by)
    return ChampionChange(version=version, former=line.champion, topology=str(line.topology))


def set_tryout(settings: Settings, version: str, reason: str) -> None:
    """Record that nobody decided on a version: it is a try-out."""
    tag(settings, version, {"reason": reason, TRYOUT: "yes"})


def _make_default(settings: Settings, line: Line, *, by_hand: bool) -> None:
    registry = client(settings)
    known = lines(settings.of(VersionReference.of(f"models:/{line.name}/1").algorithm))
    present = next((each for each in known if each.is_default), None)
    if present is None or present.name == line.name:
        registry.set_registered_model_tag(line.name, DEFAULT, "yes")
    elif by_hand or (line.topology.is_measured and not present.topology.is_measured):
        registry.set_registered_model_tag(line.name, DEFAULT, "yes")
        registry.delete_registered_model_tag(present.name, DEFAULT)
