"""How a piece of work is timed on each kind of device.

Compute on the CPU is timed as the CPU time of one thread, because wall time varies by tens of per cent where processes
share cores; communication is wall time.
"""

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

CLOCKS = {"cpu": "thread_cpu", "cuda": "cuda_event"}
"""What a sample calls the clock of each kind of device."""


@runtime_checkable
class Clock(Protocol):
    """Times a piece of work in milliseconds."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The work's result, and how long the device worked on it."""
        ...

    def exchange(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """The work's result, and how long it took until this rank had sent and received all."""
        ...


class CpuClock:
    """CPU time of the calling thread for compute, wall time for communication."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`; autograd runs CPU work in the calling thread, so backward is counted too."""
        start = time.thread_time_ns()
        result = work()
        return result, (time.thread_time_ns() - start) / 1e6

    def exchange(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`."""
        start = time.perf_counter_ns()
        result = work()
        return result, (time.perf_counter_ns() - start) / 1e6


class CudaClock:
    """CUDA events on the current stream for both; the first event waits behind the flush, as the kernels do."""

    def compute(self, work: Callable[[], Tensor]) -> tuple[Tensor, float]:
        """See `Clock`."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = work()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end)

    exchange = compute


def clock_of(device: torch.device) -> Clock:
    """The clock for work on `device`."""
    return CpuClock() if device.type == "cpu" else CudaClock()


def interquartile_range(values_ms: Float[Tensor, " R"]) -> float:
    """The spread of repeats: what a quarter of them lie above and below."""
    quartiles = torch.quantile(values_ms, torch.tensor([0.25, 0.75], dtype=values_ms.dtype))
    return float(quartiles[1] - quartiles[0])
