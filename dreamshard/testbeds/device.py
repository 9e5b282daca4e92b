"""One device that runs operators in turn: its clock, its memory, the lookups on it, and its cold caches.

All testbeds that measure share it. Memory of weights and lookups stay on the device from shard to shard, which makes the
set-up of a shard cheap. Caches are cold because with warm ones a small shard looks much cheaper than it is in a model.

Compute on the CPU is timed as the CPU time of one thread, because wall time varies by tens of per cent where processes
share cores; communication is wall time. On CUDA both are timed by events on the current stream.
"""

import gc
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from jaxtyping import Shaped
from torch import Tensor

from dreamshard.testbeds.base import TestbedSetup
from dreamshard.workloads.lookups import Lookups, check_indices

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
"""Written to empty the caches; on a CPU at least, as its last-level cache may be larger."""
FLUSHES = {"cpu": 1, "cuda": 3}
"""Writes before each compute phase; on CUDA enough to hide the time that Python takes to launch the kernels."""
CONTEXT_BYTES = 2**30
"""Memory of a GPU that this process needs besides torch's: the driver's context, kernels, NCCL; at most."""
KEPT_LOOKUP_BYTES = {"cpu": 2**30, "cuda": 2**33}
INT32_LIMIT = 2**31 - 1
_ALIGNMENT = 64  # bytes, a cache line
_FILL = 0x3C  # byte of weights: 0.01 in fp32, 1.06 in fp16

Result = TypeVar("Result")


class Device:
    """Runs operators with cold caches, within the device's memory; `num_ranks` ranks share the host's memory and cache."""

    def __init__(self, setup: TestbedSetup, device: torch.device, num_ranks: int = 1) -> None:
        self.setup, self._num_ranks = setup, num_ranks
        self._weights = torch.empty(0, dtype=torch.uint8, device=device)
        self.device = self._weights.device  # with the number of a GPU
        flush_bytes = FLUSH_BYTES[device.type]
        if device.type == "cpu":
            flush_bytes = max(flush_bytes, last_level_cache_bytes(num_ranks))
        self._flush = torch.zeros(flush_bytes // 4, device=device)
        self._lookups: dict[str, Lookups] = {}

    def read(self, name: str, rows: int) -> Lookups:
        """A table's lookups on the device, the whole batch; they stay there until there are too many.

        Raises:
            ValueError: lookups are missing, of too few samples, or of a table of more rows.
        """
        if name not in self._lookups:
            wanted = self.setup.batch_size
            lookups = self.setup.lookups(name).first(wanted)
            if lookups.batch_size < wanted:
                raise ValueError(
                    f"lookups of {lookups.batch_size} samples cannot fill a batch of {wanted}; ingest the workload with a "
                    "larger batch, or measure with a smaller one"
                )
            check_indices(lookups.indices, rows, f"table {name}")  # the operator does not
            lookups = Lookups(lookups.indices.to(self.device), lookups.offsets.to(self.device))
            kept_bytes = sum(part.indices.nbytes + part.offsets.nbytes for part in self._lookups.values())
            if kept_bytes > KEPT_LOOKUP_BYTES[self.device.type]:
                self._lookups.clear()
            self._lookups[name] = lookups
        return self._lookups[name]

    def weights(self, sizes: Sequence[int]) -> list[Shaped[Tensor, " N"]]:
        """Memory of so many bytes for each operator of a shard, side by side; of earlier shards it must be free again.

        New weights for each placement would take gigabytes to allocate and fill, and fresh zero pages make lookups look
        cheap (they all map to one page of memory). So all shards share this memory, which is filled when it grows.
        """
        starts = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
        if starts[-1] > len(self._weights):
            self._weights = self._weights[:0].clone()  # free before taking more
            self._weights = torch.full((starts[-1],), _FILL, dtype=torch.uint8, device=self.device)
        return [self._weights[start:][:size] for start, size in zip(starts, sizes, strict=False)]

    def within_memory(self, work: Callable[[], Result], needed_bytes: int) -> Result | None:
        """The result of work that needs this much memory; None if less is free, or the device ran out of memory."""
        if needed_bytes <= self.free_bytes():
            with suppress(torch.OutOfMemoryError):
                return work()
            gc.collect()  # the work's memory is released once the clause above has ended
            torch.cuda.empty_cache()
        return None

    def free_bytes(self) -> int:
        """Memory for shards: free, and holding weights; on a CPU a rank's share of the host's or the container's."""
        if self.device.type == "cuda":
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            return torch.cuda.mem_get_info(self.device)[0] + unused
        share: int = machine_memory_bytes() // self._num_ranks - psutil.Process().memory_info().rss
        available: int = psutil.virtual_memory().available // self._num_ranks
        return max(0, min(share, available)) + len(self._weights)

    def foreign_bytes(self) -> int:
        """Memory of a GPU that other processes hold; 0 on a CPU."""
        if self.device.type == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return max(0, total - free - torch.cuda.memory_reserved(self.device) - CONTEXT_BYTES)

    def flush(self) -> None:
        """Empty the caches."""
        for _ in range(FLUSHES[self.device.type]):
            self._flush.add_(1)

    def cold(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """The result and milliseconds of computing with cold caches."""
        self.flush()
        return self.timed(work)

    def timed(
        self, work: Callable[[], Result], now_ns: Callable[[], int] = time.thread_time_ns
    ) -> tuple[Result, float]:
        """The result of work and its milliseconds, by events on CUDA, and otherwise by a clock of the host.

        Autograd runs CPU work in the calling thread, so thread time counts the backward pass too.
        """
        if self.device.type == "cpu":
            start_ns = now_ns()
            result = work()
            return result, (now_ns() - start_ns) / 1e6
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()  # waits behind the cache flush, as the kernels do
        result = work()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end)

    def synchronize(self) -> None:
        """Wait for all kernels."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def device_model(device_type: str) -> str:
    """Model of the first GPU, or of the processor."""
    if device_type == "cuda":
        return torch.cuda.get_device_name(0)
    match = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def machine_memory_bytes(cgroups: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Memory of this machine, or of the container that this process is in.

    Args:
        cgroups: root of the control groups' files, of version 1 or 2.
        groups: file that names the groups of this process: `0::/path`, or `9:memory:/path` in version 1.
    """
    total: int = psutil.virtual_memory().total
    with suppress(OSError):  # there are no control groups
        for line in groups.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            is_first = "memory" in controllers.split(",")
            if controllers and not is_first:
                continue
            root, file = (cgroups / "memory", "memory.limit_in_bytes") if is_first else (cgroups, "memory.max")
            group = root / name.lstrip("/")
            for folder in (group, *group.parents):  # the least limit of the group and those above it counts
                if folder.is_relative_to(root):
                    with suppress(OSError, ValueError):  # there is no such file, or it says `max`
                        total = min(total, int((folder / file).read_text()))
    return total


def last_level_cache_bytes(num_ranks: int, cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """A rank's part of the last-level cache that the core it runs on shares with other cores; 0 if that is unknown.

    All ranks empty it at the same time, so each needs to write its part only.
    """
    caches = (cpus / f"cpu{min(os.sched_getaffinity(0))}" / "cache").glob("index*")
    with suppress(OSError, ValueError):
        last = max(caches, key=lambda index: int((index / "level").read_text()))
        shared_by = int((last / "shared_cpu_map").read_text().replace(",", ""), 16).bit_count()
        ranks_there = max(1, min(num_ranks, shared_by, -(-num_ranks * shared_by // (os.cpu_count() or 1))))
        return int((last / "size").read_text().strip().removesuffix("K")) * 1024 // ranks_there
    return 0
