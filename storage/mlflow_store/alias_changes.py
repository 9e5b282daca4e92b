"""Which version is in use: moves aliases and the champions of topologies, and records who changed what, when and why.

Tags of a version: `alias`, `reason`, `decided_by` and `decided_at` of the last change, `champion_of` while it is champion of
its topology, and `alias_changes`, the JSON of all changes in order (`alias_history`). All of it is among versions of one
algorithm, that of the settings; only `make_champion` takes a version of any.
The alias moves last: whoever sees it finds the reason.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from mlflow.entities.model_registry import ModelVersion

from dreamshard.names import VersionReference
from storage.mlflow_store.alias_history import (
    BY_EVALUATION,
    CHANGES_TAG,
    Alias,
    AliasChange,
    history,
    last_chosen,
)
from storage.mlflow_store.champions import champion_of
from storage.mlflow_store.registry import (
    aliases,
    champion,
    find,
    load_placer,
    model_and_number,
    reference_to,
    tag,
    tags_by_version,
    untag,
)
from storage.mlflow_store.runs import client
from storage.mlflow_store.standings import CHAMPION_OF, TOPOLOGY, TRYOUT, topology_name
from storage.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ChampionChange:
    """Which version is champion now, and which was before: the same if nothing changed; the topologies of both in words."""

    version: str
    former: str | None
    topology: str | None = None
    former_topology: str | None = None


def set_alias(settings: Settings, name: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION) -> None:
    """Point an alias at a version and record why.

    A new champion makes the old one `previous`, stops being the challenger, and becomes champion of its topology.

    Raises:
        ValueError: there is no such version.
    """
    registry, model, current = client(settings), find(settings, name), aliases(settings)
    version, former, topology = reference_to(model), current.get("champion"), topology_name(model.tags)
    name_of_model = settings.registered_model
    change = AliasChange(at=_now(), alias=alias, by=by, reason=reason)
    if alias == "champion":
        change = replace(change, displaced=_displaced(settings, version, topology))
        if former is not None and former != version:
            lost = AliasChange(at=change.at, alias="previous", by=by, replaced_by=version)
            _record(settings, find(settings, former), lost)
            registry.set_registered_model_alias(name_of_model, "previous", model_and_number(former)[1])
        if current.get("challenger") == version:
            registry.delete_registered_model_alias(name_of_model, "challenger")
        _record_displaced(settings, version, topology, change, former)
    _decided(settings, model, change)
    if alias == "champion":
        _take_topology(settings, version, topology)
    registry.set_registered_model_alias(name_of_model, alias, str(model.version))


def set_standing(settings: Settings, version: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION) -> None:
    """Make a version champion or challenger of its topology only; the registry's aliases stay where they are.

    Raises:
        ValueError: there is no such version, or its topology is not known.
    """
    model = find(settings, version)
    topology = topology_name(model.tags)
    if topology is None:
        raise ValueError(
            f"version {version} does not say which hardware it was measured on, so it can be champion of none; give it "
            f"the alias with `dreamshard promote {version}`"
        )
    change = AliasChange(at=_now(), alias=alias, by=by, reason=reason, topology=topology)
    if alias == "champion":
        change = replace(change, displaced=_displaced(settings, version, topology))
        _record_displaced(settings, version, topology, change, None)
    _decided(settings, model, change)
    if alias == "champion":
        _take_topology(settings, version, topology)


def set_reason(settings: Settings, version: str, reason: str) -> None:
    """Record why a version has no standing: it was a try-out, which nobody decided on."""
    model = find(settings, version)
    tag(settings, version, {"reason": reason, TRYOUT: "yes", **_topology_tag(model)})
    _describe(settings, model, f"try-out: {reason}")


def make_champion(settings: Settings, name: str, reason: str, by: str) -> ChampionChange:
    """Make a version champion regardless of its evaluation and its topology; the former champion becomes `previous`.

    Args:
        name: a reference to a version of any algorithm; `previous` undoes the last change, also of the champion of the
            topology that the present champion is of.
        reason: recorded on the version, like the user `by`.

    Raises:
        ValueError: there is no such version (the message lists the existing ones), or it cannot place; nothing changes.
    """
    wanted = VersionReference.of(name)
    settings = settings.of(wanted.algorithm)
    model, former = find(settings, name), champion(settings)
    former_tags = find(settings, former).tags if former is not None else {}
    version = reference_to(model)
    if version != former:
        load_placer(version, settings)  # a version that cannot be read must not come into use
        if wanted.name == "previous":
            _restore_displaced(settings, version, former_tags, reason, by)
        set_alias(settings, version, "champion", reason, by=by)
    return ChampionChange(
        version=version,
        former=former,
        topology=topology_name(model.tags),
        former_topology=topology_name(former_tags),
    )


def _restore_displaced(settings: Settings, version: str, former: Mapping[str, str], reason: str, by: str) -> None:
    """Before a version becomes champion again: give its topology back to the version that the former champion took it from.

    Args:
        former: tags of the version that is still champion.
    """
    undone = last_chosen(former)
    displaced = None if undone is None else undone.displaced
    if displaced not in (None, version) and displaced in tags_by_version(settings):
        set_standing(settings, str(displaced), "champion", reason, by=by)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def _displaced(settings: Settings, version: str, topology: str | None) -> str | None:
    """The champion of a topology, where another version is about to become it."""
    if topology is None:
        return None
    present = champion_of(settings, topology)
    return None if present == version else present


def _record_displaced(
    settings: Settings, version: str, topology: str | None, change: AliasChange, recorded: str | None
) -> None:
    """Record on the champion of a topology that a version is about to replace it.

    Args:
        recorded: version whose change has been recorded already.
    """
    if topology is not None and change.displaced not in (None, recorded):
        lost = AliasChange(at=change.at, alias="previous", by=change.by, replaced_by=version, topology=topology)
        _record(settings, find(settings, str(change.displaced)), lost)


def _take_topology(settings: Settings, version: str, topology: str | None) -> None:
    """Make a version champion of a topology, which no other version is then."""
    if topology is None:
        return
    tag(settings, version, {CHAMPION_OF: topology})
    for other, tags in tags_by_version(settings).items():
        if other != version and tags.get(CHAMPION_OF) == topology:
            untag(settings, other, CHAMPION_OF)


def _decided(settings: Settings, model: ModelVersion, change: AliasChange) -> None:
    version = reference_to(model)
    decision = {"reason": change.reason, "decided_by": change.by, "decided_at": change.at}
    tag(settings, version, decision | _topology_tag(model))
    if TRYOUT in model.tags:
        untag(settings, version, TRYOUT)
    _record(settings, model, change)


def _topology_tag(model: ModelVersion) -> dict[str, str]:
    topology = topology_name(model.tags)
    return {} if topology is None else {TOPOLOGY: topology}


def _record(settings: Settings, model: ModelVersion, change: AliasChange) -> None:
    """Set the tags `alias` and `alias_changes`, and the first line of the description; the rest of it stays."""
    version, past = reference_to(model), history(model.tags)
    if (
        not past or replace(past[-1], at=change.at, displaced=change.displaced) != change
    ):  # a retried step is recorded once
        changes = json.dumps([asdict(entry) for entry in (*past, change)])
        tag(settings, version, {CHANGES_TAG: changes})
    tag(settings, version, {"alias": change.standing})
    _describe(settings, model, f"{change.standing}: {change.why}")


def _describe(settings: Settings, model: ModelVersion, decision: str) -> None:
    _, blank, rest = (model.description or "").partition("\n\n")
    named = f"{model.tags['name']}; " if "name" in model.tags else ""
    client(settings).update_model_version(model.name, str(model.version), description=f"{named}{decision}{blank}{rest}")
