"""The testbed for people with one device who plan for many: the operators of every device run on it, one after another.

Compute is real: operators on real lookups, with cold caches. Communication follows from the links of a named accelerator. A
device's shards that were measured before, in any placement, are not measured again.
"""

import threading
from dataclasses import dataclass, replace

import torch

from dreamshard.costs import CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.files import json_digest
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.hardware.links import collectives_s
from dreamshard.hardware.roofline import link_devices_per_host
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Capacity, DeviceType, ShardKey, ShardTiming, Testbed, TestbedSetup, check_placement
from dreamshard.testbeds.device import (
    CLOCKS,
    Device,
    DoesNotFitError,
    device_model,
    library_versions,
    machine_memory_bytes,
    medians,
    slowest_spread,
)
from dreamshard.testbeds.operators import precision_of, require_fbgemm, require_operators
from dreamshard.testbeds.simulated import exchange_by_links
from dreamshard.testbeds.step import measure_operators
from dreamshard.workloads import dataset_version


@dataclass(frozen=True)
class DeviceShards:
    """The shards of one device of a placement; may be measured on another machine with the same hardware.

    Attributes:
        task: that they are of.
        shards: of the device alone.
    """

    task: PlacementTask
    shards: Shards
    device: int
    key: ShardKey


class EmulatedTestbed(Testbed):
    """Measures placements of any number of devices on one; starts no process.

    Args:
        setup: its `shard_cache` keeps timings from run to run.
        device_type: of the one device; `cuda` is the current GPU.
        target: accelerator whose links connect the devices.

    Raises:
        ValueError: fbgemm is not installed.
    """

    name = "emulated"

    def __init__(self, setup: TestbedSetup, device_type: DeviceType, target: AcceleratorSpec) -> None:
        require_fbgemm()
        self.setup, self.target = setup, target
        self.device_type: DeviceType = device_type
        self.hardware = self.links = f"{device_model(device_type)} for each device, links of {target.name}"
        self._known: dict[str, ShardTiming] = {}
        self._versions = library_versions()
        self._device: Device | None = None
        self._lock = threading.Lock()

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: operators are measured, and collectives follow from the links of the target."""
        shards = check_placement(task, placement)
        per_host = link_devices_per_host(task, shards, self.target)
        batch_size = self.setup.batch_size
        nothing = torch.zeros(task.num_devices, 4)
        phases_ms, spread_ms = nothing.clone(), nothing[:, 0].clone()
        phases_ms[:, 1:3] = 1e3 * collectives_s(shards.collectives(), batch_size, self.target, per_host)
        misfit, repeats = None, self.setup.repeats
        for part in self.device_shards(task, placement):
            try:
                timing = self.time(part)
            except DoesNotFitError as error:
                misfit = Infeasible(device=part.device, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
                phases_ms, spread_ms, repeats = nothing, nothing[:, 0], 0
                break
            phases_ms[part.device, 0], phases_ms[part.device, 3] = timing.forward_ms, timing.backward_ms
            spread_ms[part.device] = timing.spread_ms
        costs = DeviceCosts.from_phases(phases_ms)
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            spread_ms=float(spread_ms[int(costs.device_ms().argmax())]),
            repeats=repeats,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=batch_size,
            versions=self._versions,
            infeasible=misfit,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`: from the links of the target, so nothing is measured."""
        exact = exchange_by_links(exchange, self.target, testbed=self.name, hardware=self.hardware)
        comm_ms = exact.forward_ms.float()  # the same both ways
        return replace(exact, forward_ms=comm_ms, backward_ms=comm_ms, versions=self._versions)

    def device_shards(self, task: PlacementTask, placement: Placement) -> list[DeviceShards]:
        """The shards of each device that has any; raises a ValueError as `measure`."""
        shards = check_placement(task, placement)
        require_operators(task, shards, self.device_type)
        held = {d: shards.on(d) for d in shards.device.unique().tolist()}
        return [DeviceShards(task, own, d, self._key(task, own)) for d, own in held.items()]

    def time(self, part: DeviceShards) -> ShardTiming:
        """Time a device's shards on the one device, or read their timing from the cache.

        Raises:
            DoesNotFitError: the device has no room for the shards.
            ValueError: lookups are missing or of other tables.
        """
        if (known := self.cached(part)) is not None:
            return known
        with self._lock:
            if self._device is None:
                self._device = Device(self.setup, torch.device(self.device_type))
            timed = torch.from_numpy(measure_operators(part.task, part.shards, self._device, part.device))  # [R, 2]
        forward_ms, backward_ms = medians(timed).tolist()
        timing = ShardTiming(
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            spread_ms=slowest_spread(timed[:, None]),
            repeats=len(timed),
            clock=CLOCKS[self.device_type].name,
            num_tables=len(part.shards.tables),
            sum_dim=int(part.shards.tables.dim.sum()),
            memory_bytes=int(part.shards.device_bytes.sum()),
        )
        self._known[part.key.content] = timing
        if self.setup.shard_cache is not None:
            self.setup.shard_cache.put(part.key, timing)
        return timing

    def cached(self, part: DeviceShards) -> ShardTiming | None:
        """The cached timing if it has enough repeats; None if `time` would measure."""
        timing = self._known.get(part.key.content)
        if timing is None and self.setup.shard_cache is not None:
            timing = self.setup.shard_cache.get(part.key)
        return timing if timing is not None and timing.repeats >= self.setup.repeats else None

    def capacity(self, num_devices: int) -> Capacity:
        """See `Testbed`."""
        if self.device_type == "cpu":
            return Capacity(kind="cpu", memory_bytes=machine_memory_bytes())
        properties = torch.cuda.get_device_properties(0)
        return Capacity(kind="gpu", memory_bytes=int(properties.total_memory), spec=preset_of(properties.name))

    def close(self) -> None:
        """Free the device's memory."""
        self._device = None
        if self.device_type == "cuda":
            torch.cuda.empty_cache()

    def _key(self, task: PlacementTask, own: Shards) -> ShardKey:
        precisions = [precision_of(task, table) for table in own.table.tolist()]
        ways = [own.sharding_type.tolist(), own.rows.tolist(), (own.host_bytes > 0).tolist(), own.cached_share.tolist()]
        return ShardKey(
            tables=json_digest([dataset_version(own.tables), precisions, *ways]),
            hardware=device_model(self.device_type),
            versions=self._versions,
            precision=task.precision,
            optimizer=task.optimizer,
            batch_size=self.setup.batch_size,
        )
