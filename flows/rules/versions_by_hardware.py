"""Which version serves some hardware, by the hardware of its measurements."""

from dreamshard.costs import is_named, is_simulated
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.store import Store


def find_version(store: Store, spec: AcceleratorSpec, task: PlacementTask) -> Version | None:
    """The version to place a task on hardware by, or None if none was measured on it, on as many hosts.

    The champion of as many devices and hosts comes first, then the version that `champion` alone means, then champions of
    other topologies, then versions of as many devices, then measured before simulated ones, then the newest; try-outs last.
    """

    def preference(version: Version) -> tuple[bool, ...]:
        origin, is_champion = version.measured_on, version.is_champion
        assert origin is not None
        return (
            is_champion and origin.shares_hosts_as(task),
            is_champion and version.is_default,
            is_champion,
            not version.is_tryout,
            origin.num_devices == task.num_devices,
            not is_simulated(origin.hardware),
        )

    known = [
        version
        for version in registry.versions(store.settings)
        if version.measured_on is not None and is_named(spec.name, version.measured_on.hardware)
    ]
    ranked = sorted(known, key=preference, reverse=True)  # stable: of those alike, the newest
    return next((version for version in ranked if _serves(store, version, spec, task)), None)


def _serves(store: Store, version: Version, spec: AcceleratorSpec, task: PlacementTask) -> bool:
    """Whether its communication is that of the task's devices and hosts.

    It is if placements of as many devices were measured, if neither leaves a host, or if all-to-alls of the task's
    topology were measured.
    """
    origin = version.measured_on
    assert origin is not None
    hosts = (
        _hosts(origin.num_devices, origin.devices_per_host, spec),
        _hosts(task.num_devices, task.devices_per_host, spec),
    )
    if hosts == (1, 1) or (hosts[0] == hosts[1] and origin.num_devices == task.num_devices):
        return True
    return registry.load_predictor(version.uri, store.settings).cost_network.knows_topology(task)


def _hosts(num_devices: int, devices_per_host: int | None, spec: AcceleratorSpec) -> int:
    return -(-num_devices // (devices_per_host or spec.devices_per_node))
