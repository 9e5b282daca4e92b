"""Seconds of a kernel from what it does for each table: the slowest of five bounds for the tables in flight together.

Tables whose warps are resident together form a stage; stages follow one another. A stage takes as long as the slowest of

- memory: sectors that miss, and bytes streamed and written, at the bandwidth that reads reach;
- the cache: all sectors, at its bandwidth, and atomic additions, which read and write;
- instructions: four schedulers of each multiprocessor start one a cycle each (CUDA programming guide, compute capabilities
  7.x to 9.0);
- requests: the load unit of a multiprocessor serves a line of 128 bytes a cycle (Jia et al., arXiv 1804.06826, of the V100);
- latency: each step of a warp waits for the slowest of its loads, and only resident warps wait at the same time
  (Little's law; CUDA best practices guide, "Occupancy"); a stage never ends before its longest warp.

Latencies are 200 cycles for the cache and 400 for memory, the same for V100, A100 and H100 (table 3 in Ultrason. Sonochem.
99, 106546, 2023; Jia et al. measured 193 for the V100's cache). `BANDWIDTH_SHARE`: of 900 GB/s Jia et al. measured 750 on the
V100. A launch takes what the preset says. What a host needs to prepare a call is not counted.

Sorting: Onesweep (Adinets and Merrill, 2022), which CUB's radix sort is, sorts 29.4e9 keys of 32 bits per second on an A100
with 1555 GB/s: one pass that reads them, and four of 8 bits each that read and write them, so `SORT_SHARE` of the bandwidth.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.traced.accesses import SECTOR_BYTES, Floats
from dreamshard.testbeds.traced.work import KernelWork

BANDWIDTH_SHARE = 750 / 900
CACHE_CYCLES, MEMORY_CYCLES = 200.0, 400.0
SCHEDULERS = 4
SORT_SHARE = 29.4e9 * (4 + 4 * 8) / 1555e9
KEY_BYTES, VALUE_BYTES, DIGIT_BITS = 8, 4, 8  # of what is sorted: 64-bit rows with 32-bit samples
PREPARE_BYTES = (
    8 + 12 + 2 * 8 + 2 * 4
)  # per lookup: read the index, write the pair; find segments, add up their lengths
FORWARD_LAUNCHES = 2  # check of the indices' bounds, lookup
BACKWARD_LAUNCHES = 10  # linearise; histogram and scan of the sort; segments 2; their sum 2; long ones; two updates


def forward_s(works: Sequence[KernelWork], missed: Floats, spec: AcceleratorSpec) -> Floats:
    """`[S]` seconds of the forward call for a device's tables.

    Args:
        works: of each of `T` tables in the lookup kernel.
        missed: `[S, T]` sectors that miss.
    """
    return kernel_s(works, missed, spec) + FORWARD_LAUNCHES * spec.launch_s


def backward_s(
    long: Sequence[KernelWork],
    short: Sequence[KernelWork],
    missed: Floats,
    num_lookups: int,
    num_rows: int,
    spec: AcceleratorSpec,
) -> Floats:
    """`[S]` seconds of the backward call for a device's tables.

    Args:
        long: work of each of `T` tables in the kernel of long segments.
        short: in the kernel of the others.
        missed: `[S, 2, T]` sectors that miss in each.
        num_lookups: of all tables.
        num_rows: of all tables together, which the sorted keys number.
    """
    passes = -(-max(1, num_rows - 1).bit_length() // DIGIT_BITS)
    per_pass = 2 * (KEY_BYTES + VALUE_BYTES)
    sort_s = num_lookups * (KEY_BYTES + passes * per_pass) / (SORT_SHARE * spec.memory_bytes_per_s)
    prepare_s = num_lookups * PREPARE_BYTES / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    kernels_s = kernel_s(long, missed[:, 0], spec) + kernel_s(short, missed[:, 1], spec)
    return kernels_s + sort_s + prepare_s + (BACKWARD_LAUNCHES + passes) * spec.launch_s


def kernel_s(works: Sequence[KernelWork], missed: Floats, spec: AcceleratorSpec) -> Floats:
    """`[S]` seconds of one kernel, from its first warp to its last, for `S` estimates of the sectors that miss."""
    columns = {name: np.asarray([getattr(work, name) for work in works]) for name in KernelWork.__dataclass_fields__}
    starts = _stages(columns["warps"], spec.resident_warps)
    total = {name: np.add.reduceat(column, starts) for name, column in columns.items()}  # [G]
    cycles_per_s = spec.num_sms * spec.clock_hz
    missed_bytes = np.add.reduceat(missed, starts, axis=1) * SECTOR_BYTES  # [S, G]
    memory_bytes = missed_bytes + total["streamed_bytes"] + total["written_bytes"]
    bounds = [
        memory_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s),
        (total["sectors"] + 2 * total["atomics"]) * SECTOR_BYTES / spec.l2_bytes_per_s,
        total["instructions"] / (SCHEDULERS * cycles_per_s),
        total["lines"] / cycles_per_s,
    ]
    step_s = _step_cycles(columns, missed) / spec.clock_hz  # [S, T]
    resident = np.clip(total["warps"], 1, spec.resident_warps)
    bounds.append(np.add.reduceat(columns["steps"] * step_s, starts, axis=1) / resident)
    bounds.append(np.maximum.reduceat(columns["longest"] * step_s, starts, axis=1))
    slowest: Floats = np.max(np.broadcast_arrays(*bounds), axis=0)  # [S, G]
    seconds: Floats = slowest.sum(axis=1)
    return seconds


def _step_cycles(columns: dict[str, npt.NDArray[np.float64]], missed: Floats) -> Floats:
    """`[S, T]` cycles that a warp waits in a step: until the last of its loads is there."""
    hit_share = 1 - missed / np.maximum(columns["sectors"], 1)
    any_miss = 1 - np.clip(hit_share, 0, 1) ** np.maximum(columns["loads_per_step"], 1)
    return CACHE_CYCLES + (MEMORY_CYCLES - CACHE_CYCLES) * any_miss


def _stages(warps: Floats, resident_warps: int) -> npt.NDArray[np.int64]:
    """First table of each stage: tables are added until their warps fill the device."""
    starts, held = [0], 0.0
    for t, count in enumerate(warps.tolist()):
        if held >= resident_warps:
            starts.append(t)
            held = 0.0
        held += count
    return np.asarray(starts)
