"""The testbed for people with one device who plan for many: every shard is measured on it, one after another.

Compute is real: the fused operator of each device's tables, with cold caches. Communication follows from the links of a
named accelerator. A shard that was measured before, in any placement, is not measured again.
"""

import math
import threading
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import collectives_s, index_exchange_s
from dreamshard.hardware.roofline import link_devices_per_host
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup, check_placement
from dreamshard.testbeds.clocks import CLOCKS, medians, slowest_spread
from dreamshard.testbeds.cluster.sharded.device_times import device_times
from dreamshard.testbeds.cluster.sharded.job import require_shards
from dreamshard.testbeds.exchange_by_links import exchange_by_links
from dreamshard.testbeds.fused_op import require_fbgemm, require_operator
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.shard_cache import MemoryShardCache, ShardCache, ShardKey, ShardTiming
from dreamshard.testbeds.shard_runner import DoesNotFitError, ShardRunner
from dreamshard.workloads import dataset_version


@dataclass(frozen=True)
class _Times:
    """Forward and backward compute `[D, 2]` of devices, its spread `[D]`, and the passes behind them."""

    compute_ms: Float[Tensor, "D 2"]
    spread_ms: Float[Tensor, " D"]
    repeats: int


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
        """See `Testbed`: operators are measured, and collectives follow from the links of the target.

        Only shards of whole tables and columns of one precision are cached.

        Raises:
            ValueError: lookups are missing, or the device cannot run such tables.
        """
        shards = check_placement(task, placement, self.max_devices)
        per_host = link_devices_per_host(task, shards, self.target)
        with self._lock:
            is_fused = placement.is_by_columns and not task.precision_of
            timed = self._fused_times(task, shards) if is_fused else self._operator_times(task, shards)
        compute_ms = torch.zeros(task.num_devices, 2) if isinstance(timed, Infeasible) else timed.compute_ms  # [D, 2]
        comm_ms = torch.zeros_like(compute_ms) if isinstance(timed, Infeasible) else self._comm_ms(shards, per_host)
        phases_ms = torch.stack([compute_ms[:, 0], comm_ms[:, 0], comm_ms[:, 1], compute_ms[:, 1]], dim=1)  # [D, 4]
        costs = DeviceCosts.from_phases(phases_ms.float())
        misfit = timed if isinstance(timed, Infeasible) else None
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            index_ms=(1e3 * index_exchange_s(shards, self.setup.batch_size, self.target, per_host)).float(),
            overall_ms=math.inf if misfit else float(costs.overall_ms()),
            spread_ms=0.0 if isinstance(timed, Infeasible) else float(timed.spread_ms[int(costs.device_ms().argmax())]),
            repeats=0 if isinstance(timed, Infeasible) else timed.repeats,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=self._versions,
            infeasible=misfit,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`: from the links of the target, so nothing is measured."""
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

    def _comm_ms(self, shards: Shards, per_host: int) -> Float[Tensor, "D 2"]:
        """Of all collectives, forward and backward."""
        return 1e3 * collectives_s(shards.collectives(), self.setup.batch_size, self.target, per_host)

    def _key(self, tables: Tables, precision: Precision, optimizer: Optimizer) -> ShardKey:
        return ShardKey(
            tables=dataset_version(tables),
            hardware=device_model(self.device_type),
            versions=self._versions,
            precision=precision,
            optimizer=optimizer,
            batch_size=self.setup.batch_size,
        )

    def _operator_times(self, task: PlacementTask, shards: Shards) -> "_Times | Infeasible":
        """Of every operator of each device, one after another."""
        require_shards(replace(task, devices_per_host=None), shards, self.device_type)
        passes = device_times(self._shard_runner(), task, shards)
        if isinstance(passes, Infeasible):
            return passes
        return _Times(medians(passes), torch.full((task.num_devices,), slowest_spread(passes)), len(passes))

    def _fused_times(self, task: PlacementTask, shards: Shards) -> "_Times | Infeasible":
        """Of each device's tables in one fused operator, from the cache if possible."""
        require_operator(task.precision, task.optimizer, self.device_type)
        compute_ms, spread_ms, repeats = torch.zeros(task.num_devices, 2), torch.zeros(task.num_devices), []
        for d in shards.device.unique().tolist():
            tables = shards.tables.select((shards.device == d).nonzero().flatten())
            try:
                timing = self.shard(tables, task.precision, task.optimizer)
            except DoesNotFitError as error:
                return Infeasible(device=d, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
            compute_ms[d] = torch.tensor([timing.forward_ms, timing.backward_ms])
            spread_ms[d] = timing.spread_ms
            repeats.append(timing.repeats)
        return _Times(compute_ms, spread_ms, min(repeats))
