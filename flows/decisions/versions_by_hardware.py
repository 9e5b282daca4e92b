"""Which version serves some hardware: what each was measured on, from its tags."""

from dataclasses import dataclass

from dreamshard.measured_on import MeasuredOn, is_named
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
from storage.mlflow_store import registry
from storage.run_records.lineage import measured_on
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Found:
    """A version for some hardware."""

    version: str
    measured_on: MeasuredOn
    is_champion: bool
    alias: str

    @property
    def alias_note(self) -> str:
        """` (champion)`, or the alias that it was given last."""
        alias = "champion" if self.is_champion else self.alias
        return f" ({alias})" if alias else ""


def find_version(store: Store, spec: AcceleratorSpec, task: PlacementTask) -> Found | None:
    """The version to place a task on hardware by, or None where none was measured on it, on as many hosts.

    The champion comes first, then versions of as many devices, then those measured rather than simulated, then the newest.
    """
    champion = registry.champion(store.settings)
    found = []
    for number, tags in registry.tags_by_version(store.settings).items():
        origin = measured_on(tags)
        if origin is not None and is_named(spec.name, origin.hardware):
            found.append(
                Found(version=number, measured_on=origin, is_champion=number == champion, alias=tags.get("alias", ""))
            )

    def preference(one: Found) -> tuple[bool, bool, bool, int]:
        same_count = one.measured_on.num_devices == task.num_devices
        simulated = one.measured_on.hardware.startswith("simulated")
        return (one.is_champion, same_count, not simulated, int(one.version))

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
    return registry.load_placer(found.version, store.settings).cost_network.knows_topology(task)


def _hosts(num_devices: int, devices_per_host: int | None, spec: AcceleratorSpec) -> int:
    return -(-num_devices // (devices_per_host or spec.devices_per_node))
