"""The testbed for people with one device who plan for many: the operators of every device run on it, one after another.

Compute is real: operators on real lookups, with cold caches. Communication follows from the links of a named accelerator. A
device's shards that were measured before, in any placement, are not measured again.
"""

import math
import threading
from dataclasses import astuple, dataclass, replace

import torch

from dreamshard.costs import CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.files.digests import json_digest
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.hardware.links import collectives_s, index_exchange_s
from dreamshard.hardware.roofline import link_devices_per_host
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Capacity, ShardCache, ShardKey, ShardTiming, TestbedSetup, check_placement
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
from dreamshard.testbeds.jobs import DeviceType, ShardingJob, require_shards
from dreamshard.testbeds.operators import require_fbgemm
from dreamshard.testbeds.simulated import exchange_by_links
from dreamshard.testbeds.step import measure_operators
from dreamshard.workloads import dataset_version


class MemoryShardCache:
    """A `ShardCache` that lasts as long as the object."""

    def __init__(self) -> None:
        self._timings: dict[str, ShardTiming] = {}

    def get(self, key: ShardKey) -> ShardTiming | None:
        """See `ShardCache`."""
        return self._timings.get(key.content)

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """See `ShardCache`."""
        self._timings[key.content] = costs


@dataclass(frozen=True)
class DeviceShards:
    """The shards of one device of a placement; may be measured on another machine with the same hardware."""

    device: int
    key: ShardKey
    job: ShardingJob


class EmulatedTestbed:
    """Measures placements of any number of devices on one; starts no process.

    Args:
        setup: its `shard_cache` keeps timings from run to run.
        device_type: of the one device; `cuda` is the current GPU.
        target: accelerator whose links connect the devices.

    Raises:
        ValueError: fbgemm is not installed, or there is no GPU.
    """

    name = "emulated"
    max_devices: int | None = None

    def __init__(self, setup: TestbedSetup, device_type: DeviceType, target: AcceleratorSpec) -> None:
        require_fbgemm()
        if device_type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "there is no GPU that torch can use; check `nvidia-smi` and the CUDA build of torch, or measure on the CPU"
            )
        self.setup = setup
        self.target = target
        self.device_type: DeviceType = device_type
        self.hardware = f"{device_model(device_type)} for each device, links of {target.name}"
        self.links: str | None = self.hardware
        self._cache: ShardCache = MemoryShardCache() if setup.shard_cache is None else setup.shard_cache
        self._versions = library_versions()
        self._device: Device | None = None
        self._lock = threading.Lock()

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`: operators are measured, and collectives follow from the links of the target.

        Raises:
            ValueError: lookups are missing, or the device cannot run such tables.
        """
        shards = check_placement(task, placement)
        per_host = link_devices_per_host(task, shards, self.target)
        batch_size = self.setup.batch_size
        phases_ms, spread_ms = torch.zeros(task.num_devices, 4), torch.zeros(task.num_devices)
        phases_ms[:, 1:3] = 1e3 * collectives_s(shards.collectives(), batch_size, self.target, per_host)
        misfit, repeats = None, []
        for part in self.device_shards(task, placement):
            try:
                timing = self.time(part)
            except DoesNotFitError as error:
                misfit = Infeasible(device=part.device, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
                phases_ms, spread_ms, repeats = 0 * phases_ms, 0 * spread_ms, [0]
                break
            phases_ms[part.device, 0], phases_ms[part.device, 3] = timing.forward_ms, timing.backward_ms
            spread_ms[part.device] = timing.spread_ms
            repeats.append(timing.repeats)
        costs = DeviceCosts.from_phases(phases_ms)
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            index_ms=(1e3 * index_exchange_s(shards, batch_size, self.target, per_host)).float(),
            overall_ms=math.inf if misfit else float(costs.overall_ms()),
            spread_ms=float(spread_ms[int(costs.device_ms().argmax())]),
            repeats=min(repeats),
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
        """The shards of each device that has any.

        Raises:
            ValueError: the placement is not legal, or the device cannot run such tables.
        """
        shards = check_placement(task, placement)
        require_shards(task, shards, self.device_type, None)
        parts = []
        for d, job in enumerate(ShardingJob.each(range(task.num_devices), task, shards)):
            if job.shards:
                tables = shards.tables.select((shards.device == d).nonzero().flatten())
                key = ShardKey(
                    tables=json_digest([dataset_version(tables), [astuple(shard) for shard in job.shards]]),
                    hardware=device_model(self.device_type),
                    versions=self._versions,
                    precision=task.precision,
                    optimizer=task.optimizer,
                    batch_size=self.setup.batch_size,
                )
                parts.append(DeviceShards(d, key, job))
        return parts

    def time(self, shards: DeviceShards) -> ShardTiming:
        """Time a device's shards on the one device, or read their timing from the cache.

        Raises:
            DoesNotFitError: the device has no room for the shards.
            ValueError: lookups are missing or of other tables.
        """
        if (known := self.cached(shards)) is not None:
            return known
        with self._lock:
            if self._device is None:
                self._device = Device(self.setup, torch.device(self.device_type))
            timed = torch.from_numpy(measure_operators(shards.job, self._device, shards.device))  # [R, 2]
        forward_ms, backward_ms = medians(timed).tolist()
        timing = ShardTiming(
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            spread_ms=slowest_spread(timed[:, None]),
            repeats=len(timed),
            clock=CLOCKS[self.device_type].name,
            num_tables=len(shards.job.shards),
            sum_dim=sum(shard.dim for shard in shards.job.shards),
            memory_bytes=shards.job.device_bytes,
        )
        self._cache.put(shards.key, timing)
        return timing

    def cached(self, shards: DeviceShards) -> ShardTiming | None:
        """The cached timing if it has enough repeats; None if `time` would measure."""
        timing = self._cache.get(shards.key)
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
