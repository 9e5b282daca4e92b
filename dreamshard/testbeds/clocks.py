"""How work is timed on each kind of device.

Compute on the CPU is timed as the CPU time of one thread, because wall time varies by tens of per cent where processes
share cores; communication is wall time. On CUDA both are timed by events on the current stream.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Timed = Callable[[Callable[[], Tensor]], tuple[Tensor, float]]
"""Runs work; returns its result and milliseconds."""


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


def _thread_cpu(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    start = time.thread_time_ns()  # autograd runs CPU work in the calling thread, so backward is counted too
    result = work()
    return result, (time.thread_time_ns() - start) / 1e6


def _wall(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    start = time.perf_counter_ns()
    result = work()
    return result, (time.perf_counter_ns() - start) / 1e6


def _cuda_event(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()  # waits behind the cache flush, as the kernels do
    result = work()
    end.record()
    end.synchronize()
    return result, start.elapsed_time(end)


CLOCKS = {"cpu": Clock("thread_cpu", _thread_cpu, _wall), "cuda": Clock("cuda_event", _cuda_event, _cuda_event)}
"""By type of device."""


def medians(timed_ms: Float[Tensor, "R ..."]) -> Float[Tensor, "..."]:
    """Over the repeats; the mean of the two middle ones if their number is even, unlike `torch.median`."""
    return torch.quantile(timed_ms, 0.5, dim=0)


def slowest_spread(timed_ms: Float[Tensor, "R D P"]) -> float:
    """Interquartile range, over the repeats, of the summed phases of the device whose sum of medians is the largest."""
    slowest = int(medians(timed_ms).sum(dim=1).argmax())
    quartiles = torch.quantile(timed_ms[:, slowest].sum(dim=1), torch.tensor([0.25, 0.75], dtype=timed_ms.dtype))
    return float(quartiles[1] - quartiles[0])
