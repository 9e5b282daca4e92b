"""What a decided candidate becomes: champion or challenger of its topology, and whether it gets the alias as well."""

from dataclasses import dataclass, replace
from typing import Literal

from dreamshard.names import VersionReference
from flows.decisions.promotion_decision import Decision
from flows.decisions.promotion_veto import find_veto
from storage.mlflow_store import alias_changes, champions, registry
from storage.mlflow_store.alias_history import BY_EVALUATION, last_chosen
from storage.mlflow_store.standings import PROVISIONAL, HomeSetting, takes_alias, topology_name
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a version stands after a promotion.

    Attributes:
        alias: the alias that it has; `none` where other versions keep theirs.
        words: the same for people, e.g. `champion of simulated h100 · 4 devices`.
        note: what became of the alias `champion` and why; empty where the version has it, or was compared with the one that
            has it.
    """

    alias: Literal["champion", "challenger", "none"]
    words: str
    note: str = ""


def settle(store: Store, version: str, decision: Decision) -> Standing:
    """Make the candidate what the decision says, in its topology, and give it the alias where it belongs there.

    The alias goes to the champion of its topology by `standings.takes_alias`, unless a veto holds against the version that
    has it. The caller holds the registry's lock.
    """
    settings = store.settings
    known, holder = registry.tags_by_version(settings), registry.champion(settings)
    topology, home = topology_name(known[version]), champions.home_setting(settings)
    belongs = takes_alias(known[version], known.get(holder or ""), home)
    keeper = version if decision.alias == "champion" else champions.champion_of(settings, topology)
    same_topology = holder is None or topology is None or topology_name(known[holder]) in (topology, None)
    veto = None if keeper is None or same_topology else find_veto(store, keeper, holder, None)
    named = "provisional champion" if decision.alias == "champion" and decision.provisional else decision.alias
    if decision.alias == "champion":
        _mark(store, version, known[version], decision.provisional)
    if decision.alias == "champion" and belongs and veto is None:
        if holder != version:
            alias_changes.set_alias(settings, version, "champion", decision.reason)
        return Standing(alias="champion", words=named, note=_took_over(known, version, holder))
    alias: Literal["challenger", "none"] = "none"
    if decision.alias == "champion":
        if not decision.already_champion:
            alias_changes.set_standing(settings, version, "champion", decision.reason)
    elif belongs:
        alias_changes.set_alias(settings, version, "challenger", decision.reason)
        alias = "challenger"
    else:
        alias_changes.set_standing(settings, version, "challenger", decision.reason)
    if belongs and veto is None and keeper is not None and keeper != holder:
        alias_changes.set_alias(settings, keeper, "champion", f"champion of {topology}, where `champion` belongs")
        return Standing(alias=alias, words=named, note=_took_over(known, keeper, holder))
    words = named if alias == "challenger" else f"{named} of {topology}"
    if decision.alias == "challenger" and same_topology:
        return Standing(alias=alias, words=words)
    stays = _stays(known, _alias(version), holder, home if veto is None else None)
    sentence = stays if veto is None else f"{stays}: {veto.sentence}"
    how = "" if veto is not None else f"; `dreamshard promote {version}` gives it to this version"
    return Standing(alias=alias, words=words, note=f"{sentence}{how}")


def tried_out(store: Store, version: str, decision: Decision) -> Standing:
    """Leave all as it is, and record why; a version that was decided on before keeps its standing."""
    known = registry.tags_by_version(store.settings)[version]
    if "decided_by" in known:
        return Standing(alias="none", words="left as it is", note=f"it is {known['alias']} since {known['decided_at']}")
    alias_changes.set_reason(store.settings, version, decision.reason)
    command = f"`dreamshard promote {version}`"
    return Standing(alias="none", words="a try-out", note=f"no version's standing changed; {command} makes it champion")


def _mark(store: Store, version: str, tags: dict[str, str], provisional: str) -> None:
    """Keep why a champion is provisional; empty takes that back."""
    if tags.get(PROVISIONAL, "") != provisional:
        registry.tag(store.settings, version, {PROVISIONAL: provisional})


def _took_over(known: dict[str, dict[str, str]], version: str, holder: str | None) -> str:
    """Says that the alias came from another topology; empty if it did not."""
    if holder is None or holder == version:
        return ""
    own, other = topology_name(known[version]), topology_name(known[holder])
    if own is None or other is None or own == other:
        return ""
    return (
        f"`{_alias(version)}` is now version {version}, of {own}; it was version {holder}, of {other}, with which it was not "
        "compared and which is kept as `previous`"
    )


def _alias(version: str) -> str:
    """The alias of the version in use of a version's algorithm, as people write it."""
    return str(replace(VersionReference.of(version), name="champion"))


def _stays(known: dict[str, dict[str, str]], alias: str, holder: str | None, home: HomeSetting | None) -> str:
    if holder is None:
        return f"there is no `{alias}`, since this home is set to {home}"
    chosen = last_chosen(known[holder])
    by_hand = chosen is not None and chosen.by != BY_EVALUATION
    why = ""
    if chosen is not None and by_hand and (home is None or chosen.at >= home.since):
        why = f", which {chosen.by} chose at {chosen.at}"
    elif home is not None:
        why = f"; this home is set to {home}"
    return f"`{alias}` stays version {holder}, of {topology_name(known[holder])}{why}"
