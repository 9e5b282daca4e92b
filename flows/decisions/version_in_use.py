"""Which version is in use for what a person retrains, and since when."""

from dataclasses import dataclass

from dreamshard.costs import SIMULATED, is_simulated
from dreamshard.recipes import Recipe
from dreamshard.testbeds import is_testbed
from storage.mlflow_store import registry
from storage.mlflow_store.topology import Topology
from storage.mlflow_store.version_names import in_words
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The champion of a topology.

    Attributes:
        since: when it became champion, `YYYY-MM-DD HH:MM:SS UTC`.
        topology: hardware and devices in words.
        note: why it is provisional, for people; empty if it is not.
        dataset: version of the tables that it was trained on.
    """

    version: str
    since: str
    topology: str
    dataset: str
    note: str = ""

    def sentence(self) -> str:
        """The version for people."""
        note = f" It is {self.note}." if self.note else ""
        return f"{in_words(self.version)} is in use since {self.since} ({self.topology}).{note}"


def version_in_use(store: Store, config: Recipe) -> InUse | None:
    """The champion of the testbed and devices of a configuration; None before the first.

    If several kinds of hardware may be meant, as by the testbed `auto`, it is that of the default model.
    """
    for line in registry.lines(store.settings):
        if line.champion is not None and _includes(config, line.topology):
            tags = registry.version_tags(store.settings, line.champion)
            return InUse(
                version=line.champion,
                since=tags["decided_at"],
                topology=str(line.topology),
                dataset=tags["dataset"],
                note=registry.provisional_note(tags),
            )
    return None


def _includes(config: Recipe, topology: Topology) -> bool:
    """Whether a configuration measures on a topology."""
    if topology.num_devices != config.tasks.num_devices:
        return False
    if config.testbed in (None, "auto"):
        return topology.testbed != SIMULATED and not is_simulated(topology.hardware)
    return is_testbed(config.testbed, topology.testbed, topology.hardware)
