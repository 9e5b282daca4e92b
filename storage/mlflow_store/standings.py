"""Which version is champion of which topology, and which topology the alias `champion` belongs to: rules over tags.

Nothing here reads or writes the registry (`champions`, `alias_changes`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dreamshard.names import SIMULATED, is_simulated
from storage.mlflow_store.alias_history import BY_EVALUATION, last_chosen
from storage.mlflow_store.topology import Topology

CHAMPION_OF = "champion_of"
"""Tag of a version: the topology that it is champion of; absent unless it is."""

TOPOLOGY = "topology"
"""Tag of a version: its topology in words."""

TRYOUT = "tryout"
"""Tag of a version: `yes` if it was run without promoting; absent otherwise."""

PROVISIONAL = "provisional"
"""Tag of a champion whose evaluation does not show it to be cheaper than the best rule of thumb: its figures."""

_HOME_TESTBED, _HOME_DEVICES, _HOME_SINCE = "home_testbed", "home_devices", "home_since"
HOME_TAGS = (_HOME_TESTBED, _HOME_DEVICES, _HOME_SINCE)
"""Tags of the registered model: the home's setting."""


@dataclass(frozen=True, kw_only=True)
class HomeSetting:
    """The testbed and devices that the alias `champion` belongs to, as a person set them for scheduled retraining.

    Attributes:
        testbed: its name on the command line; None or `auto` for real devices, or one real device that stands for many.
        num_devices: number of devices; None for any.
        since: time since when they are set, `YYYY-MM-DD HH:MM:SS UTC`.
    """

    testbed: str | None
    num_devices: int | None
    since: str

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> "HomeSetting | None":
        """From the tags of the registered model; None if nothing is set."""
        testbed, devices = tags.get(_HOME_TESTBED) or None, tags.get(_HOME_DEVICES) or None
        if testbed is None and devices is None:
            return None
        return cls(testbed=testbed, num_devices=int(devices) if devices else None, since=tags.get(_HOME_SINCE, ""))

    def tags(self) -> dict[str, str]:
        """As tags of the registered model; an empty value stands for None."""
        return dict(zip(HOME_TAGS, (self.testbed or "", str(self.num_devices or ""), self.since), strict=True))

    def includes(self, topology: Topology) -> bool:
        """Whether costs of this topology are those that the home is set to."""
        if self.num_devices not in (None, topology.num_devices):
            return False
        if self.testbed in (None, "auto"):
            return topology.testbed != SIMULATED and not is_simulated(topology.hardware)
        from dreamshard.testbeds import is_testbed  # brings torch, which takes seconds

        return is_testbed(str(self.testbed), topology.testbed, topology.hardware)

    def __str__(self) -> str:
        devices = "" if self.num_devices is None else f" with {self.num_devices} devices"
        return f"{self.testbed or 'auto'}{devices}"


def topology_name(tags: Mapping[str, str]) -> str | None:
    """The topology of a version in words, from its tags; None where they do not say."""
    if TOPOLOGY in tags:
        return tags[TOPOLOGY]
    topology = Topology.of_tags(tags)
    return None if topology is None else str(topology)


def provisional_note(tags: Mapping[str, str]) -> str:
    """Why a champion is provisional, for people; empty for a version that is not, or is champion no more."""
    if CHAMPION_OF not in tags or not tags.get(PROVISIONAL):
        return ""
    return f"provisional: not yet shown to be cheaper than a rule of thumb ({tags[PROVISIONAL]})"


def champions_among(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The champion of each topology: topology in words to version.

    Args:
        versions: tags of all versions of one algorithm, newest first.
    """
    return {tags[CHAMPION_OF]: version for version, tags in reversed(list(versions.items())) if CHAMPION_OF in tags}


def takes_alias(candidate: Mapping[str, str], holder: Mapping[str, str] | None, home: HomeSetting | None) -> bool:
    """Whether a champion of its topology gets the alias `champion` too.

    It does in the topology of the version that has the alias, which it has been compared with. In another one it does if
    the home is set to it; without a setting, if it was measured on real devices and the version that has the alias was
    not. A person's choice of a version holds until another setting is made. An unknown topology counts as the same one.

    Args:
        candidate: tags of the version.
        holder: tags of the version that has the alias; None where there is none.
        home: what the home is set to; None if nothing is.
    """
    topology = Topology.of_tags(candidate)
    if holder is None:
        return home is None or topology is None or home.includes(topology)
    other = Topology.of_tags(holder)
    if topology is None or other is None or topology_name(candidate) == topology_name(holder):
        return True
    chosen = last_chosen(holder)
    if chosen is not None and chosen.by != BY_EVALUATION and (home is None or chosen.at >= home.since):
        return False
    if home is not None:
        return home.includes(topology)
    return topology.is_measured and not other.is_measured
