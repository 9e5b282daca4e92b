"""Which version is in use for what a person retrains, and since when."""

from dataclasses import dataclass

from dreamshard.names import number_of
from dreamshard.recipes import Recipe
from storage.mlflow_store import registry
from storage.mlflow_store.alias_history import history
from storage.mlflow_store.standings import HomeSetting, champions_among, provisional_note
from storage.mlflow_store.topology import Topology
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The champion of a topology.

    Attributes:
        since: when it became champion, `YYYY-MM-DD HH:MM:SS UTC`; None if its tags do not say.
        topology: hardware and devices in words.
        note: why it is provisional, for people; empty if it is not.
    """

    version: str
    since: str | None
    topology: str
    note: str = ""

    def sentence(self) -> str:
        """The version for people."""
        since = "" if self.since is None else f" since {self.since}"
        note = f" It is {self.note}." if self.note else ""
        return f"Version {self.version} is in use{since} ({self.topology}).{note}"


def version_in_use(store: Store, config: Recipe) -> InUse | None:
    """The champion of the testbed and devices of a configuration; None before the first.

    Where several kinds of hardware may be meant, as by the testbed `auto`, it is the version with the alias `champion`, else
    the newest.
    """
    tags, alias = registry.tags_by_version(store.settings), registry.champion(store.settings)
    wanted = HomeSetting(testbed=config.testbed, num_devices=config.tasks.num_devices, since="")
    found: list[InUse] = []
    for topology, version in champions_among(tags).items():
        measured = Topology.of_tags(tags[version])
        if measured is not None and wanted.includes(measured):
            chosen = [change for change in history(tags[version]) if change.alias == "champion"]
            found.append(
                InUse(
                    version=version,
                    since=chosen[-1].at if chosen else None,
                    topology=topology,
                    note=provisional_note(tags[version]),
                )
            )
    return max(found, key=lambda each: (each.version == alias, number_of(each.version)), default=None)
