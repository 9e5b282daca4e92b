"""One device that runs operators in turn: its clock, its memory, the lookups on it, and its cold caches.

All testbeds that measure share it. Memory of weights and lookups stay on the device from shard to shard, which makes the
set-up of a shard cheap. Caches are cold because with warm ones a small shard looks much cheaper than it is in a model.

Compute on the CPU is timed as the CPU time of one thread, because wall time varies by tens of per cent where processes
share cores; communication is wall time. On CUDA both are timed by events on the current stream.
"""

import gc
import platform
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamshard.costs import PHASES, CostSample, DeviceCosts, Infeasible
from dreamshard.placement import Placement
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import DeviceType, Testbed, TestbedSetup
from dreamshard.workloads import Lookups
from dreamshard.workloads.lookups import check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
FLUSHES = {"cpu": 1, "cuda": 3}
"""Writes before each compute phase; on CUDA enough to hide the time that Python takes to launch the kernels."""
KEPT_LOOKUP_BYTES = {"cpu": 2**30, "cuda": 2**33}
INT32_LIMIT = 2**31 - 1
_ALIGNMENT = 256  # bytes, as CUDA allocates
_WEIGHT = 0.01  # of filled memory
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Result = TypeVar("Result")
Timed = Callable[[Callable[[], Tensor]], tuple[Tensor, float]]
"""Runs work; returns its result and milliseconds."""


class DoesNotFitError(RuntimeError):
    """A shard or an all-to-all asks for more bytes of memory than its device has free."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes do not fit a device that has {free_bytes} free")
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes


class Clock(NamedTuple):
    """Times work on one type of device: of operators, and of collectives until this rank sent and received everything."""

    name: str
    compute: Timed
    communicate: Timed


def _host_clock(now_ns: Callable[[], int]) -> Timed:
    def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        start = now_ns()
        result = work()
        return result, (now_ns() - start) / 1e6

    return timed


def _cuda_event(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()  # waits behind the cache flush, as the kernels do
    result = work()
    end.record()
    end.synchronize()
    return result, start.elapsed_time(end)


CLOCKS = {
    # Autograd runs CPU work in the calling thread, so thread time counts the backward pass too.
    "cpu": Clock("thread_cpu", _host_clock(time.thread_time_ns), _host_clock(time.perf_counter_ns)),
    "cuda": Clock("cuda_event", _cuda_event, _cuda_event),
}
"""By type of device."""


def medians(timed_ms: Float[Tensor, "R ..."]) -> Float[Tensor, "..."]:
    """Over the repeats; the mean of the two middle ones if their number is even, unlike `torch.median`."""
    return torch.quantile(timed_ms, 0.5, dim=0)


def slowest_spread(timed_ms: Float[Tensor, "R D P"]) -> float:
    """Interquartile range, over the repeats, of the summed phases of the device whose sum of medians is the largest."""
    slowest = int(medians(timed_ms).sum(dim=1).argmax())
    quartiles = torch.quantile(timed_ms[:, slowest].sum(dim=1), torch.tensor([0.25, 0.75], dtype=timed_ms.dtype))
    return float(quartiles[1] - quartiles[0])


class Device:
    """Runs operators with cold caches, within the device's memory."""

    def __init__(self, setup: TestbedSetup, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # the name that tensors on it have
        self.setup = setup
        self.device = device
        self.clock = CLOCKS[device.type]
        self._weights = torch.empty(0, dtype=torch.uint8, device=device)
        self._flush = torch.zeros(FLUSH_BYTES[device.type] // 4, device=device)
        self._lookups: OrderedDict[tuple[str, int], Lookups] = OrderedDict()

    def read(self, name: str, rows: int) -> Lookups:
        """A table's lookups on the device, the whole batch, from an LRU cache.

        Raises:
            ValueError: lookups are missing, of too few samples, or of a table of more rows.
        """
        key = (parent_name(name), rows)  # columns of one table share its lookups
        if key not in self._lookups:
            lookups, wanted = self.setup.lookups(key[0]).first(self.setup.batch_size), self.setup.batch_size
            if lookups.batch_size < wanted:
                raise ValueError(
                    f"lookups of {lookups.batch_size} samples cannot fill a batch of {wanted}; ingest the workload with a "
                    "larger batch, or measure with a smaller one"
                )
            check_indices(lookups.indices, rows, f"table {name}")  # the operator does not
            if self.device.type == "cuda":
                dtype = torch.int32 if max(rows, len(lookups.indices)) <= INT32_LIMIT else torch.int64
                lookups = Lookups(lookups.indices.to(self.device, dtype), lookups.offsets.to(self.device))
            self._lookups[key] = lookups
        self._lookups.move_to_end(key)
        kept_bytes = sum(each.indices.nbytes + each.offsets.nbytes for each in self._lookups.values())
        while len(self._lookups) > 1 and kept_bytes > KEPT_LOOKUP_BYTES[self.device.type]:
            _, oldest = self._lookups.popitem(last=False)
            kept_bytes -= oldest.indices.nbytes + oldest.offsets.nbytes
        return self._lookups[key]

    def weights(self, sizes: Sequence[int]) -> list[Shaped[Tensor, " N"]]:
        """Memory of so many bytes for each operator of a shard, side by side; of earlier shards it must be free again.

        New weights for each placement would take gigabytes to allocate and fill, and fresh zero pages make lookups look
        cheap (they all map to one page of memory). So all shards share this memory, which is filled when it grows.
        """
        aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        if sum(aligned) > len(self._weights):
            self._weights = self._weights[:0].clone()  # free before taking more
            self._weights = torch.empty(sum(aligned), dtype=torch.uint8, device=self.device)
            self._weights.view(torch.float16).fill_(_WEIGHT)  # finite in both precisions
        parts = self._weights[: sum(aligned)].split(aligned)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def within_memory(self, work: Callable[[], Result], needed_bytes: int) -> Result:
        """Run work that needs this much memory.

        Raises:
            DoesNotFitError: it needs more than is free, or the device ran out of memory.
        """
        if needed_bytes <= self.free_bytes():
            with suppress(torch.OutOfMemoryError):
                return work()
            gc.collect()  # the work's memory is released once the clause above has ended
            torch.cuda.empty_cache()
        raise DoesNotFitError(needed_bytes, self.free_bytes())

    def free_bytes(self) -> int:
        """Memory for shards: free, and holding weights."""
        if self.device.type == "cuda":
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return torch.cuda.mem_get_info(self.device)[0] + unused + len(self._weights)
        return int(psutil.virtual_memory().available) + len(self._weights)

    def cold(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The result and milliseconds of computing with cold caches."""
        for _ in range(FLUSHES[self.device.type]):
            self._flush.add_(1)
        return self.clock.compute(work)

    def synchronize(self) -> None:
        """Wait for all kernels."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class DeviceTestbed(Testbed):
    """A testbed that times operators on devices of one type."""

    setup: TestbedSetup
    device_type: DeviceType

    def sample(
        self, task: PlacementTask, placement: Placement, timed: Float[Tensor, "R D 4"] | Infeasible
    ) -> CostSample:
        """The sample of a placement, by the milliseconds of each timed pass."""
        infeasible, repeats = None, len(timed) if isinstance(timed, Tensor) else 0
        if isinstance(timed, Infeasible):
            infeasible, timed = timed, torch.zeros(1, task.num_devices, len(PHASES))
        return CostSample(
            task=task,
            placement=placement,
            costs=DeviceCosts.from_phases(medians(timed).to(torch.float32)),
            spread_ms=slowest_spread(timed),
            repeats=repeats,
            clock=CLOCKS[self.device_type].name,
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
            versions=library_versions(),
            infeasible=infeasible,
        )


def device_model(device_type: str) -> str:
    """Model of the first GPU, or of the processor."""
    if device_type == "cuda":
        return str(torch.cuda.get_device_name(0))
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def library_versions() -> dict[str, str]:
    """Versions of torch, of CUDA if torch is built for it, and of the installed build of fbgemm."""
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda or "")}
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {name: number for name, number in versions.items() if number}


def machine_memory_bytes() -> int:
    """Memory of this machine, or of the container that this process is in."""
    limits = [int(psutil.virtual_memory().total)]
    for file in map(Path, _CGROUP_LIMITS):
        with suppress(OSError, ValueError):  # there is no such file, or it says `max`
            limits.append(int(file.read_text()))
    return min(limits)
