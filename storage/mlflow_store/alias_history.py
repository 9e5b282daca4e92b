"""What is recorded of a version's standing: which change, by whom, when and why.

The tag `alias_changes` holds all changes of a version in order. `alias_changes.py` makes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Alias = Literal["champion", "challenger", "previous"]

CHANGES_TAG = "alias_changes"
BY_EVALUATION = "evaluation"
"""`AliasChange.by` if no person decided."""


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """A version received an alias, or a standing in its topology.

    Attributes:
        at: time of the change, `YYYY-MM-DD HH:MM:SS UTC`.
        alias: the alias.
        by: user who decided, or `BY_EVALUATION`.
        reason: for people; empty if another version replaced this one.
        replaced_by: version that became champion instead; None otherwise.
        topology: the change is within this topology only, and the registry's alias did not move; empty if it moved.
        displaced: version that was champion of the topology before this one became it; None if there was none or it stayed.
    """

    at: str
    alias: Alias
    by: str
    reason: str = ""
    replaced_by: str | None = None
    topology: str = ""
    displaced: str | None = None

    @property
    def standing(self) -> str:
        """The alias, with its topology if it is within that only."""
        return f"{self.alias} of {self.topology}" if self.topology else self.alias

    @property
    def why(self) -> str:
        """The reason in words."""
        return self.reason if self.replaced_by is None else f"replaced by version {self.replaced_by}"

    @property
    def sentence(self) -> str:
        """The change in words."""
        return f"{self.at} {self.standing}, by {self.by}: {self.why}"


def history(tags: Mapping[str, str]) -> list[AliasChange]:
    """All changes of a version's standing, oldest first, from its tags."""
    return [AliasChange(**change) for change in json.loads(tags.get(CHANGES_TAG, "[]"))]


def replaced(tags: Mapping[str, str]) -> AliasChange | None:
    """The change by which another version became champion in this one's place; None if it was champion again since."""
    changes = [change for change in history(tags) if change.alias != "challenger"]
    return changes[-1] if changes and changes[-1].alias == "previous" else None


def replaced_by_hand(tags: Mapping[str, str]) -> AliasChange | None:
    """The change by which a person put another champion in this version's place; None if it was champion again since."""
    change = replaced(tags)
    return change if change is not None and change.by != BY_EVALUATION else None


def last_chosen(tags: Mapping[str, str]) -> AliasChange | None:
    """The newest change that gave the version the alias `champion`; None if it never had it."""
    return next(
        (change for change in reversed(history(tags)) if change.alias == "champion" and not change.topology), None
    )
