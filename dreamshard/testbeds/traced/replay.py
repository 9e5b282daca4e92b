"""Replays the accesses of all devices through their caches: which sectors miss, by table and kernel.

On each device the kernels run over its tables in order: the lookup kernel on a cold cache, and later both kernels of the
backward pass on another cold one, since the dense model and the all-to-alls have run between them.

Misses of the simulated sets stand for those of all sets. The first miss of each sector is certain and counted exactly, over
all sets; only the others, those of sectors that were evicted and wanted again, are sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dreamshard.testbeds.traced.accesses import Floats, Longs, SetSampler
from dreamshard.testbeds.traced.cache import missing_sectors
from dreamshard.testbeds.traced.tables import KERNELS, TableTrace

SAMPLES = 8
"""Disjoint samples of the simulated sets, by which the error is estimated."""
_PHASES = ((0,), (1, 2))  # kernels that follow one another on one cache
_TABLE = 1 << 44  # above all line numbers of a table


@dataclass(frozen=True)
class _Phase:
    """Accesses of one device in one phase, set by set, within each in order of time.

    Attributes:
        part: `[N]` the kernel and table: kernel of the phase times T, plus the table.
        cache_set: `[N]` within the device.
    """

    part: Longs
    cache_set: npt.NDArray[np.int32]
    line: Longs
    sectors: npt.NDArray[np.uint8]
    fresh: npt.NDArray[np.uint8]


def missed_sectors(devices: Sequence[Sequence[TableTrace]], sampler: SetSampler, resident_warps: int) -> list[Floats]:
    """`[S+1, K, T]` sectors that miss for each device's `T` tables in each of `K` kernels.

    The first entry is by all simulated sets, the others by each of `S` disjoint samples of them.
    """
    phases = [_phase(traces, kernels, resident_warps) for traces in devices for kernels in _PHASES]
    offsets = np.repeat(np.arange(len(phases)), [len(phase.line) for phase in phases]) * sampler.num_sets
    missing = missing_sectors(
        np.concatenate([phase.cache_set for phase in phases]) + offsets,
        np.concatenate([phase.line for phase in phases]),
        np.concatenate([phase.sectors for phase in phases]),
    )
    ends = np.cumsum([len(phase.line) for phase in phases])
    missing_by_phase = iter(np.split(missing, ends[:-1]))
    found = []
    for d, traces in enumerate(devices):
        again = [
            _evicted(phases[len(_PHASES) * d + i], next(missing_by_phase), len(kernels) * len(traces), sampler)
            for i, kernels in enumerate(_PHASES)
        ]
        by_kernel = np.concatenate(again, axis=1).reshape(SAMPLES + 1, len(KERNELS), len(traces))
        works = [[trace.work[kernel] for trace in traces] for kernel in range(len(KERNELS))]
        distinct = np.asarray([[work.distinct for work in row] for row in works])
        wanted = np.asarray([[work.sectors for work in row] for row in works])
        found.append(np.minimum(distinct + by_kernel, np.maximum(distinct, wanted)))
    return found


def _phase(traces: Sequence[TableTrace], kernels: Sequence[int], resident_warps: int) -> _Phase:
    """Kernel after kernel, table after table; neighbouring tables overlap by the warps in flight."""
    parts, times, end = [], [], 0.0
    for kernel in kernels:
        begin = end
        for trace in traces:
            parts.append(trace.accesses[kernel])
            times.append(parts[-1].time + begin)
            begin += trace.work[kernel].steps / resident_warps
            end = max(end, begin, float(times[-1].max(initial=0)) + 1)  # the next kernel waits for all warps
    time = np.concatenate(times)
    part = np.repeat(np.arange(len(parts)), [len(accesses.line) for accesses in parts])
    order = np.argsort(time, kind="stable")  # nearly sorted
    cache_set = np.concatenate([accesses.cache_set for accesses in parts])[order]
    order = order[np.argsort(cache_set.astype(np.uint16), kind="stable")]  # by radix
    line, sectors, fresh, sets = (
        np.concatenate([getattr(accesses, name) for accesses in parts])[order]
        for name in ("line", "sectors", "fresh", "cache_set")
    )
    part = part[order]
    return _Phase(part, sets, line + part % len(traces) * _TABLE, sectors, fresh)


def _evicted(phase: _Phase, missing: npt.NDArray[np.uint8], num_parts: int, sampler: SetSampler) -> Floats:
    """`[S+1, P]` estimated misses of sectors that were in the cache before."""
    again = missing.astype(np.float64) - phase.fresh
    sample = phase.cache_set % SAMPLES
    index = sample * num_parts + phase.part
    sums = np.bincount(index, weights=again, minlength=SAMPLES * num_parts).reshape(SAMPLES, num_parts)
    sets = np.bincount(np.arange(sampler.num_sets) % SAMPLES, minlength=SAMPLES)  # [S]
    share = np.concatenate([[sampler.num_sets], sets]) / (sampler.k * sampler.num_sets)  # [S+1] of all sets
    return np.concatenate([sums.sum(axis=0, keepdims=True), sums]) / share[:, None]
