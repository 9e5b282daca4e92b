"""How long NCCL's collectives take within a node: monotone curves through public measurements, in logarithms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.testbeds.accelerators.monotone_curve import MonotoneCurve, nearest_rising
from dreamshard.testbeds.accelerators.public_measurements import Operation, collective_times

MEASURED_LINKS: dict[str, tuple[str, ...]] = {
    "nvlink": ("a100", "h100", "h200", "b200", "b300", "gb200", "gb300"),
    "pcie": ("l40s", "rtx_pro_6000"),
}
"""GPUs with measured collectives by the kind of their link."""


@dataclass(frozen=True, eq=False)
class LinkCurve:
    """Seconds of a collective among a fixed number of GPUs; never falls as bytes grow.

    Below the smallest measured size it takes as long as that; above the largest it grows in proportion.

    Attributes:
        logs: logarithm of seconds over the logarithm of bytes, as `collective_times` counts them.
    """

    logs: MonotoneCurve

    def seconds(self, sent_bytes: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Seconds for these bytes, of any shape, in their precision."""
        wanted = sent_bytes.double().clamp(min=1).log()
        within = wanted.clamp(float(self.logs.x[0]), float(self.logs.x[-1]))
        return (self.logs.at(within) + (wanted - within).clamp(min=0)).exp().to(sent_bytes.dtype)


@cache
def link_curve(gpu: str, num_gpus: int, operation: Operation = "all_to_all") -> LinkCurve:
    """The curve of `num_gpus` of this kind; between measured numbers it is interpolated in their logarithm.

    Beyond the largest measured number `m`, each doubling adds as much latency as the last measured one, and the rest grows
    with the share of the bytes that leaves a GPU, from `(m-1)/m` to `(n-1)/n`.

    Raises:
        ValueError: no all-to-all of that GPU was measured, or `num_gpus` is below 2.
    """
    times = collective_times(operation)
    if gpu not in times:
        raise ValueError(
            f"no {operation.replace('_', '-')} of {gpu!r} was measured, so it has no curve; choose one of {sorted(times)}"
        )
    if num_gpus < 2:
        raise ValueError(f"{num_gpus} GPU exchanges nothing with others, so it has no curve; ask for at least 2")
    return fit_link_curve(times[gpu], num_gpus)


def fit_link_curve(times_us: Mapping[int, Mapping[int, float]], num_gpus: int) -> LinkCurve:
    """Like `link_curve`, through the times given by number of GPUs and bytes."""
    counts = sorted(times_us)
    curves = {count: _through(times_us[count]) for count in counts}
    if num_gpus in curves:
        return curves[num_gpus]
    log_bytes = torch.cat([curve.logs.x for curve in curves.values()]).unique()
    at_counts = torch.stack([curve.seconds(log_bytes.exp()) for curve in curves.values()])  # [C, K]
    if num_gpus > counts[-1] and len(counts) > 1:
        seconds = _beyond(at_counts[-2:], counts[-2], counts[-1], num_gpus)
    else:
        at = np.interp(np.log(num_gpus), np.log(counts), np.arange(len(counts)))
        low, part = int(at), float(at % 1)
        seconds = at_counts[low] ** (1 - part) * at_counts[min(low + 1, len(counts) - 1)] ** part
    return LinkCurve(MonotoneCurve.through(log_bytes, seconds.log()))


def _beyond(seconds: Float[Tensor, "2 K"], fewer: int, most: int, num_gpus: int) -> Float[Tensor, " K"]:
    latency_s = (seconds[1, 0] - seconds[0, 0]).clamp(min=0) * math.log(num_gpus / most, most / fewer)
    return seconds[1] * ((num_gpus - 1) / num_gpus) / ((most - 1) / most) + latency_s


def _through(times_us: Mapping[int, float]) -> LinkCurve:
    """The curve through times by bytes, after the least change that makes them rise."""
    sizes = sorted(times_us)
    log_seconds = torch.tensor([1e-6 * times_us[size] for size in sizes], dtype=torch.float64).log()
    log_bytes = torch.tensor(sizes, dtype=torch.float64).log()
    return LinkCurve(MonotoneCurve.through(log_bytes, nearest_rising(log_seconds)))
