"""The testbed for people with one device who plan for many: every shard is measured on it, one after another.

Compute is real: the fused operator of each device's tables, with cold caches. Communication follows from the links of a
named accelerator. A shard that was measured before, in any placement, is not measured again.
"""

import math
import threading
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES, CostSample, DeviceCosts, Infeasible, ShardingSample
from dreamshard.exchange_sample import Exchange, ExchangeSample
from dreamshard.placed_shards import PlacedShards
from dreamshard.placement import Placement
from dreamshard.sharding import ShardedPlacement
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.collectives import collectives_s, index_exchange_s
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.roofline import link_devices_per_host
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
from dreamshard.testbeds.base import TestbedSetup, check_placement, check_sharding, of_any_sharding, of_whole_tables
from dreamshard.testbeds.clocks import CLOCKS, medians, slowest_spread
from dreamshard.testbeds.cluster.sharded.device_times import device_times
from dreamshard.testbeds.cluster.sharded.job import require_shards
from dreamshard.testbeds.exchange_by_links import exchange_by_links
from dreamshard.testbeds.fused_op import require_fbgemm, require_operator
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.shard_cache import MemoryShardCache, ShardCache, ShardKey, ShardTiming
from dreamshard.testbeds.shard_runner import DoesNotFitError, ShardRunner
from dreamshard.workloads.table_statistics import dataset_version


class EmulatedTestbed:
    """Measures placements of any number of devices on one; starts no process.

    Args:
        setup: its `shard_cache` keeps shards from run to run.
        device_type: of the one device; `cuda` is the current GPU.
        target: accelerator whose links connect the devices.

    Raises:
        ValueError: fbgemm is not installed, or there is no GPU.
    """

    name = "emulated"
    max_devices: int | None = None

    def __init__(self, setup: TestbedSetup, device_type: Literal["cpu", "cuda"], target: AcceleratorSpec) -> None:
        require_fbgemm()
        if device_type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "there is no GPU that torch can use, so nothing can be measured on one; check `nvidia-smi` and the "
                "CUDA build of torch, or measure on the CPU"
            )
        self.setup = setup
        self.target = target
        self.device_type = device_type
        self.hardware = self.links = f"{device_model(device_type)} for each device, links of {target.name}"
        self._cache: ShardCache = MemoryShardCache() if setup.shard_cache is None else setup.shard_cache
        self._versions = library_versions()
        self._runner: ShardRunner | None = None
        self._lock = threading.Lock()

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; raises a ValueError, too, if lookups are missing."""
        task, placement = check_placement(task, placement, self.max_devices)
        if task.precision_of:
            sharded = ShardedPlacement.of(placement, task.tables, task.devices_per_host)
            return of_whole_tables(self.measure_sharding(task, sharded), placement)
        require_operator(task.precision, task.optimizer, self.device_type)
        timings: dict[int, ShardTiming] = {}  # by device that holds tables
        infeasible: Infeasible | None = None
        with self._lock:
            for d in placement.device.unique().tolist():
                shard = task.tables.select(placement.tables_of(d))
                try:
                    timings[d] = self.shard(shard, task.precision, task.optimizer)
                except DoesNotFitError as error:
                    infeasible = Infeasible(device=d, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
                    timings = {}
                    break
        if infeasible is None:
            costs = self._costs(task, placement, timings)
        else:
            costs = DeviceCosts.from_phases(torch.zeros(task.num_devices, len(PHASES)))
        slowest = int(costs.device_ms().argmax())
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            overall_ms=math.inf if infeasible else float(costs.overall_ms()),
            spread_ms=timings[slowest].spread_ms if slowest in timings else 0.0,
            repeats=min((timing.repeats for timing in timings.values()), default=0),
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=self._versions,
            infeasible=infeasible,
        )

    def measure_sharding(self, task: PlacementTask, placement: ShardedPlacement) -> ShardingSample:
        """See `ShardingTestbed`: operators are measured, and collectives follow from the links of the target.

        Nothing is cached; whole tables and column shards of one precision cost what `measure` gives.
        """
        shards = check_sharding(task, placement, self.max_devices)
        require_shards(replace(task, devices_per_host=None), shards, self.device_type)
        per_host = link_devices_per_host(task, shards, self.target)
        index_ms = (1e3 * index_exchange_s(shards, self.setup.batch_size, self.target, per_host)).float()
        whole = placement.as_columns()
        if whole is not None and not task.precision_of:
            return of_any_sharding(self.measure(task, whole), placement, index_ms)
        with self._lock:
            timed = device_times(self._shard_runner(), task, shards)
        infeasible = timed if isinstance(timed, Infeasible) else None
        passes = torch.zeros(1, task.num_devices, 2) if isinstance(timed, Infeasible) else timed  # [R, D, 2]
        compute_ms = medians(passes)  # [D, 2]
        comm_ms = torch.zeros_like(compute_ms) if infeasible else self._comm_ms(shards, per_host)
        phases_ms = torch.stack([compute_ms[:, 0], comm_ms[:, 0], comm_ms[:, 1], compute_ms[:, 1]], dim=1)  # [D, 4]
        costs = DeviceCosts.from_phases(phases_ms.float())
        return ShardingSample(
            task=task,
            placement=placement,
            costs=costs,
            index_ms=index_ms,
            overall_ms=math.inf if infeasible else float(costs.overall_ms()),
            spread_ms=slowest_spread(passes),
            repeats=0 if infeasible else len(passes),
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=self._versions,
            infeasible=infeasible,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `ExchangeTestbed`: from the links of the target, so nothing is measured."""
        return exchange_by_links(
            exchange, self.target, testbed=self.name, hardware=self.hardware, versions=self._versions
        )

    def shard(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> ShardTiming:
        """Time the shard of `tables` on the one device, or read its timing from the cache.

        Raises:
            DoesNotFitError: the device has no room for the shard.
            ValueError: lookups are missing or of other tables.
        """
        cached = self.cached(tables, precision, optimizer)
        if cached is not None:
            return cached
        timing = self._shard_runner().measure(tables, precision, optimizer)
        self._cache.put(self._key(tables, precision, optimizer), timing)
        return timing

    def cached(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> ShardTiming | None:
        """The cached timing if it has enough repeats; None if `shard` would measure."""
        timing = self._cache.get(self._key(tables, precision, optimizer))
        return timing if timing is not None and timing.repeats >= self.setup.repeats else None

    def close(self) -> None:
        """Free the device's memory."""
        self._runner = None
        if self.device_type == "cuda":
            torch.cuda.empty_cache()

    def _shard_runner(self) -> ShardRunner:
        """Of the one device."""
        if self._runner is None:
            self._runner = ShardRunner(self.setup, torch.device(self.device_type))
        return self._runner

    def _comm_ms(self, shards: PlacedShards, per_host: int) -> Float[Tensor, "D 2"]:
        """Of all collectives, forward and backward."""
        seconds = collectives_s(shards.collectives(), self.setup.batch_size, self.target, per_host)
        return 1e3 * torch.stack([seconds.forward_s, seconds.backward_s], dim=1)

    def _key(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> ShardKey:
        return ShardKey(
            tables=dataset_version(tables),
            hardware=device_model(self.device_type),
            versions=self._versions,
            precision=precision,
            optimizer=optimizer,
            batch_size=self.setup.batch_size,
        )

    def _costs(self, task: PlacementTask, placement: Placement, timings: dict[int, ShardTiming]) -> DeviceCosts:
        sum_dims = torch.zeros(task.num_devices, dtype=torch.float64)  # [D]
        sum_dims.scatter_add_(0, placement.device, task.tables.dim.double())
        sent_bytes = vector_bytes(sum_dims, self.setup.batch_size)
        comm_ms = (1e3 * all_to_all_s(sent_bytes, self.target, task.devices_per_host)).float()
        phases_ms = torch.stack(
            [torch.zeros_like(comm_ms), comm_ms, comm_ms, torch.zeros_like(comm_ms)], dim=1
        )  # [D, 4]
        for d, timing in timings.items():
            phases_ms[d, 0], phases_ms[d, 3] = timing.forward_ms, timing.backward_ms
        return DeviceCosts.from_phases(phases_ms)
