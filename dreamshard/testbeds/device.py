"""One device that runs operators in turn: its clock, its memory, the lookups on it, and its cold caches.

All testbeds that measure share it. Weights stay in one arena and lookups on the device from shard to shard, which makes
the set-up of a shard cheap. Caches are cold because with warm ones a small shard looks much cheaper than it is in a model.

Compute on the CPU is timed as the CPU time of one thread, because wall time varies by tens of per cent where processes
share cores; communication is wall time. On CUDA both are timed by events on the current stream.
"""

import gc
import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamshard.tables import parent_name
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.workloads import Lookups
from dreamshard.workloads.lookups import check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
FLUSHES = {"cpu": 1, "cuda": 3}
"""Writes before each compute phase; on CUDA enough to hide the time that Python takes to launch the kernels."""
KEPT_LOOKUP_BYTES = {"cpu": 2**30, "cuda": 2**33}
INT32_LIMIT = 2**31 - 1
_ALIGNMENT = 256  # bytes, as CUDA allocates
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Result = TypeVar("Result")
Timed = Callable[[Callable[[], Tensor]], tuple[Tensor, float]]
"""Runs work; returns its result and milliseconds."""


class DoesNotFitError(RuntimeError):
    """A shard or an all-to-all asks for more bytes of memory than its device has free."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes are asked for on a device that has {free_bytes} free")
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes


@dataclass(frozen=True)
class Clock:
    """Times work on one kind of device.

    Attributes:
        compute: milliseconds that the device worked.
        communicate: milliseconds until this rank had sent and received everything.
    """

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


class WeightArena:
    """Memory for the weights of one shard at a time.

    New weights for each placement would take gigabytes to allocate and fill, and fresh zero pages make lookups look cheap
    (they all map to one page of memory). So operators share this memory, which is filled when it grows.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, which the next shard may use."""
        return self._memory.numel()

    def weights(self, num_weights: int, dtype: torch.dtype) -> Shaped[Tensor, " W"]:
        """`[W]` weights; they share the memory of earlier ones, which must no longer be in use."""
        num_bytes = num_weights * dtype.itemsize
        if num_bytes > self._memory.numel():
            self._memory = torch.empty(0, dtype=torch.uint8, device=self.device)  # free before taking more
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._memory[: num_bytes // 2 * 2].view(torch.float16).fill_(0.01)  # finite in both precisions
        return self._memory[:num_bytes].view(dtype)

    def divided(self, sizes: Sequence[int]) -> "list[WeightArena]":
        """Arenas of at least `sizes` bytes side by side in this one's memory, for operators in use together."""
        aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        memory = self.weights(sum(aligned), torch.uint8)
        parts = [WeightArena(self.device) for _ in sizes]
        for part, taken in zip(parts, memory.split(aligned), strict=True):
            part._memory = taken
        return parts


class Device:
    """Runs operators with cold caches, within the device's memory."""

    def __init__(self, setup: TestbedSetup, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # the name that tensors on it have
        self.setup = setup
        self.device = device
        self.clock = CLOCKS[device.type]
        self.arena = WeightArena(device)
        self._flush = torch.zeros(FLUSH_BYTES[device.type] // 4, device=device)
        self._lookups: OrderedDict[tuple[str, int], Lookups] = OrderedDict()

    def read(self, name: str, rows: int) -> Lookups:
        """A table's lookups on the device, the whole batch, from an LRU cache.

        Raises:
            ValueError: lookups are missing or of a table of more rows.
        """
        key = (parent_name(name), rows)  # columns of one table share its lookups
        if key not in self._lookups:
            lookups = self.setup.lookups(key[0]).first(self.setup.batch_size)
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
        """Memory for shards: what is free, and the arena."""
        if self.device.type == "cuda":
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return torch.cuda.mem_get_info(self.device)[0] + unused + self.arena.num_bytes
        return int(psutil.virtual_memory().available) + self.arena.num_bytes

    def cold(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The result and milliseconds of computing with cold caches."""
        for _ in range(FLUSHES[self.device.type]):
            self._flush.add_(1)
        return self.clock.compute(work)

    def synchronize(self) -> None:
        """Wait for all kernels."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


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
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in map(Path, _CGROUP_LIMITS):
        with suppress(OSError, ValueError):  # there is no such file, or it says `max`
            limits.append(int(file.read_text()))
    return min(limits)
