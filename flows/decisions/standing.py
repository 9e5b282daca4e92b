"""What a decided candidate becomes: champion or challenger of its topology, or a try-out."""

from dataclasses import dataclass
from typing import Literal

from flows.decisions.promotion_decision import Decision
from storage.mlflow_store import aliases, registry
from storage.mlflow_store.version_names import in_words
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a version stands after a promotion.

    Attributes:
        alias: the alias that it has; `none` for a try-out.
        words: the same for people, e.g. `champion of simulated h100 · 4 devices`.
        note: that `champion` alone means a version of another topology; empty if it does not.
    """

    alias: Literal["champion", "challenger", "none"]
    words: str
    note: str = ""


def settle(store: Store, version: str, decision: Decision) -> Standing:
    """Make the candidate what the decision says, in its topology; the caller holds the registry's lock."""
    settings = store.settings
    if not decision.already_champion:
        aliases.set_alias(settings, version, decision.alias, decision.reason, provisional=decision.provisional)
    elif decision.provisional != registry.version_tags(settings, version).get(registry.PROVISIONAL, ""):
        registry.tag(settings, version, {registry.PROVISIONAL: decision.provisional or None})
    line, in_use = registry.line_of(settings, version), registry.champion(settings)
    named = "provisional champion" if decision.alias == "champion" and decision.provisional else decision.alias
    other = "" if line.is_default or in_use is None else f"`champion` alone means {in_words(in_use)}; "
    how = f"{other}`dreamshard promote {version}` makes it mean this one" if other else ""
    return Standing(alias=decision.alias, words=f"{named} of {line.topology}", note=how)


def tried_out(store: Store, version: str, decision: Decision) -> Standing:
    """Leave all as it is, and record why; a version that was decided on before keeps its standing."""
    tags = registry.version_tags(store.settings, version)
    if "decided_by" in tags:
        return Standing(alias="none", words="left as it is", note=f"it was decided on at {tags['decided_at']}")
    aliases.set_tryout(store.settings, version, decision.reason)
    command = f"`dreamshard promote {version}`"
    return Standing(alias="none", words="a try-out", note=f"no version's standing changed; {command} makes it champion")
