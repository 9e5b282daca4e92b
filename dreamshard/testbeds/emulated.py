"""The testbed for people with one device who plan for many: every shard is measured on it, one after another.

Compute is real: the fused operator of each device's tables, with cold caches. Communication is not: it follows from
the link figures of the accelerator that the one device stands for. A shard that was measured before, in this placement
or in any other, is not measured again.
"""

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts, Infeasible, infeasible_costs
from dreamshard.placement import Placement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup, check_placement
from dreamshard.testbeds.clocks import CLOCKS, interquartile_range
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.roofline import all_to_all_s
from dreamshard.testbeds.shard_cache import ShardCache, ShardKey, ShardMemory, ShardTiming, shard_key
from dreamshard.testbeds.shard_runner import BuiltShard, DoesNotFitError, ShardRunner
from dreamshard.testbeds.specs import AcceleratorSpec


class EmulatedTestbed:
    """Measures placements of any number of devices on one; starts no process.

    Args:
        setup: what every testbed is told; its `shard_cache` keeps shards from run to run.
        device_type: the one device; `cuda` is the current GPU.
        target: whose links the devices have.

    Attributes:
        name: `emulated`.
        hardware: model of the one device, and whose links.
        max_devices: None: any number, over as many nodes as it takes.

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
        self.hardware = f"{device_model(device_type)} for each device, links of {target.name}"
        self._cache: ShardCache = ShardMemory() if setup.shard_cache is None else setup.shard_cache
        self._versions = library_versions()
        self._bench: ShardRunner | None = None
        self._in_turn = threading.Lock()

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement, shard by shard; see `Testbed`.

        Raises:
            ValueError: the placement is not legal for the task, or lookups are missing.
        """
        task, placement = check_placement(task, placement, self.max_devices)
        shards: list[ShardTiming | None] = []
        infeasible: Infeasible | None = None
        with self._in_turn:
            for d in range(task.num_devices):
                held = placement.tables_of(d)
                try:
                    shards.append(self.shard(task.tables.select(held), task) if held else None)
                except DoesNotFitError as error:
                    infeasible = Infeasible(device=d, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
                    break
        return self._sample(task, placement, shards, infeasible)

    def shard(self, tables: Tables, task: PlacementTask) -> ShardTiming:
        """What the one device takes for `tables`, read back where it is known.

        Args:
            task: whose precision and optimizer.

        Raises:
            DoesNotFitError: the device has no room for it.
            ValueError: lookups are missing or not those of the tables.
        """
        known = self.known(tables, task)
        if known is not None:
            return known
        if self._bench is None:
            self._bench = ShardRunner(self.setup, torch.device(self.device_type))
        measured = measure_shard(self._bench, tables, task)
        self._cache.put(self._key(tables, task), measured)
        return measured

    def known(self, tables: Tables, task: PlacementTask) -> ShardTiming | None:
        """What `shard` would read back, of as many repeats as are asked for; None where it would measure."""
        found = self._cache.get(self._key(tables, task))
        return found if found is not None and found.repeats >= self.setup.repeats else None

    def _key(self, tables: Tables, task: PlacementTask) -> ShardKey:
        return shard_key(
            tables,
            task.precision,
            task.optimizer,
            hardware=device_model(self.device_type),
            versions=self._versions,
            batch_size=self.setup.batch_size,
        )

    def close(self) -> None:
        """Give the device's memory back."""
        self._bench = None
        if self.device_type == "cuda":
            torch.cuda.empty_cache()

    def _sample(
        self,
        task: PlacementTask,
        placement: Placement,
        shards: list[ShardTiming | None],
        infeasible: Infeasible | None,
    ) -> CostSample:
        known = [shard for shard in shards if shard is not None]
        costs = infeasible_costs(task.num_devices)
        if infeasible is None:
            costs = self._costs(task, placement, shards)
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            overall_ms=float(costs.overall_ms()) if infeasible is None else math.inf,
            spread_ms=max((shard.spread_ms for shard in known), default=0.0) if infeasible is None else 0.0,
            repeats=min((shard.repeats for shard in known), default=0) if infeasible is None else 0,
            clock=CLOCKS[self.device_type],
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=self._versions,
            infeasible=infeasible,
        )

    def _costs(self, task: PlacementTask, placement: Placement, shards: list[ShardTiming | None]) -> DeviceCosts:
        sum_dims = torch.zeros(task.num_devices, dtype=torch.float64)  # [D]
        sum_dims.scatter_add_(0, placement.device, task.tables.dim.double())
        comm_ms = 1e3 * all_to_all_s(sum_dims, self.setup.batch_size, self.target)

        def compute_ms(name: str) -> Float[Tensor, " D"]:
            return torch.tensor([0.0 if shard is None else getattr(shard, name) for shard in shards])

        return DeviceCosts(
            forward_compute_ms=compute_ms("forward_ms"),
            forward_comm_ms=comm_ms.float(),
            backward_comm_ms=comm_ms.float(),
            backward_compute_ms=compute_ms("backward_ms"),
        )


def _pass(bench: ShardRunner, built: BuiltShard) -> tuple[float, float]:
    """Milliseconds forward and backward of one step."""
    pooled, forward_ms = bench.forward(built)
    return forward_ms, bench.backward(pooled, bench.gradient(pooled))


def measure_shard(
    bench: ShardRunner,
    tables: Tables,
    task: PlacementTask,
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> ShardTiming:
    """What the device of `bench` takes for one shard.

    Args:
        bench: of the device.
        tables: of the shard.
        task: whose precision and optimizer.
        quiet: entered for the passes; keeps other threads of this process still.

    Raises:
        DoesNotFitError: the device has no room for it.
        ValueError: lookups are missing or not those of the tables.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the CPU's clock counts one thread
    try:
        built = bench.build(tables, task.precision, task.optimizer)
        num_passes = bench.setup.warmups + bench.setup.repeats
        with quiet():
            passes = bench.within_memory(lambda: [_pass(bench, built) for _ in range(num_passes)], 0)
    finally:
        torch.set_num_threads(num_threads)
    timed = torch.tensor(passes[bench.setup.warmups :], dtype=torch.float64)  # [R, 2]
    forward_ms, backward_ms = timed.median(dim=0).values.tolist()
    return ShardTiming(
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        spread_ms=interquartile_range(timed.sum(dim=1)),
        repeats=len(timed),
        clock=CLOCKS[bench.device.type],
        num_tables=len(tables),
        sum_dim=int(tables.dim.sum()),
        memory_bytes=int(tables.memory_bytes(task.precision, task.optimizer).sum()),
    )
