"""Which version serves some hardware: what each was measured on, from its tags."""

from dataclasses import dataclass

from dreamshard.costs import MeasuredOn, is_named, is_simulated
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.mlflow_store.registry import TRYOUT, provisional_note
from storage.mlflow_store.version_names import in_words, number_of
from storage.run_records.lineage import measured_on
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Found:
    """A version for some hardware.

    Attributes:
        version: its number.
        measured_on: what its costs are of.
        in_use: whether it has the alias `champion`.
        is_champion: whether it is champion of its topology.
        is_tryout: whether it was run without promoting.
        note: why it is provisional, for people; empty if it is not.
    """

    version: str
    measured_on: MeasuredOn
    in_use: bool
    is_champion: bool
    is_tryout: bool
    note: str = ""

    @property
    def alias_note(self) -> str:
        """` (champion)`, ` (a try-out)` or nothing."""
        standing = "champion" if self.is_champion else "a try-out" if self.is_tryout else ""
        return f" ({standing})" if standing else ""

    @property
    def caveat(self) -> str:
        """That it is a provisional champion, and why, for people; empty if it is not."""
        is_champion = self.in_use or self.is_champion
        return f"{in_words(self.version)} is {self.note}" if self.note and is_champion else ""


def find_version(store: Store, spec: AcceleratorSpec, task: PlacementTask) -> Found | None:
    """The version to place a task on hardware by, or None where none was measured on it, on as many hosts.

    The champion of as many devices and hosts comes first, then the version that has the alias, then champions of other
    topologies, then versions of as many devices, then those measured rather than simulated, then the newest; try-outs last.
    """
    in_use, known = registry.champion(store.settings), registry.tags_by_version(store.settings)
    champions, found = registry.champions(store.settings), []
    for number, tags in known.items():
        origin = measured_on(tags)
        if origin is not None and is_named(spec.name, origin.hardware):
            found.append(
                Found(
                    version=number,
                    measured_on=origin,
                    in_use=number == in_use,
                    is_champion=number in champions,
                    is_tryout=TRYOUT in tags,
                    note=provisional_note(tags),
                )
            )

    def preference(one: Found) -> tuple[bool, bool, bool, bool, bool, bool, int]:
        origin = one.measured_on
        same_count, measured = origin.num_devices == task.num_devices, not is_simulated(origin.hardware)
        of_topology = one.is_champion and origin.shares_hosts_as(task)
        return (
            *(of_topology, one.in_use, one.is_champion, not one.is_tryout, same_count, measured),
            number_of(one.version),
        )

    ranked = sorted(found, key=preference, reverse=True)
    return next((one for one in ranked if _serves(store, one, spec, task)), None)


def _serves(store: Store, found: Found, spec: AcceleratorSpec, task: PlacementTask) -> bool:
    """Whether its communication is that of the task's devices and hosts.

    It is if placements of as many devices were measured, if neither leaves a host, or if all-to-alls of the task's
    topology were measured.
    """
    origin = found.measured_on
    hosts = (
        _hosts(origin.num_devices, origin.devices_per_host, spec),
        _hosts(task.num_devices, task.devices_per_host, spec),
    )
    if hosts == (1, 1) or (hosts[0] == hosts[1] and origin.num_devices == task.num_devices):
        return True
    return registry.load_predictor(found.version, store.settings).cost_network.knows_topology(task)


def _hosts(num_devices: int, devices_per_host: int | None, spec: AcceleratorSpec) -> int:
    return -(-num_devices // (devices_per_host or spec.devices_per_node))
