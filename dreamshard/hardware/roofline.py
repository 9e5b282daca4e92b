"""Milliseconds of a placement by an accelerator's figures: the fused operator's kernels, and collectives.

A shard is a row of additive loads (`loads.py`), and a device's load is the sum of its shards'. The search and the simulated
testbed cost such sums by the same compiled functions. Times are not additive:

- a shard with little work does not fill the device, and costs what the host needs to launch its kernels;
- the widest table of a shard sets how many threads share a row, so lanes idle for narrower tables;
- repeated reads are served from the cache as far as the hottest rows of the tables in flight fit into it;
- the backward pass sorts all indices of the shard, with one more pass for every 8 bits of its total rows.

Kernels run as FBGEMM's CUDA code does (pytorch/FBGEMM at 71d6f8b2). Forward: a group of 8, 16 or 32 threads reads a row; a
warp looks up the bag of a sample. Backward: all indices are sorted, so that the lookups of a row are one segment. A warp sums
a segment's gradients and updates its row. A segment of more than `LONG` lookups takes a block of 1,024 threads, one of which
fits a multiprocessor at a time, for each `LONGEST` lookups of it. Such steps wait for memory, so that they cost cycles, and
bytes count besides: lookups of small hot rows are not cheap.

Tables in host memory: fbgemm's prefetch sorts the cached lookups, fetches missing rows over the host's link and writes back
the rows that they drive out, both ways at once; the backward pass reads and writes the optimizer's state there. Data-parallel
copies: the backward pass clears a dense gradient; a dense optimizer then reads it and rewrites all rows.

Constants marked as fitted are so together, by least squares on logarithms: to the forward sweep of torchrec PR 2365 (taken
for an A100), times of V100 and H100, kernels of one trace of an A100 (HolisticTraceAnalysis), and NeuroShard's cost network
of four GPUs like an RTX 2080 Ti. The host's launches are of one B200 call (FBGEMM PR 5749). `HOST_LINK_SHARE` is fitted to an
H100 (NVIDIA/recsys-examples), whose backward pass moves rows at 39 to 44 GB/s in each direction at once, of 63.
`python -m tests.benchmarks presets` compares all public times.
"""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.files import digest
from dreamshard.hardware import loads as at
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import collectives_s
from dreamshard.hardware.loads import placed_loads
from dreamshard.shards import Shards

BANDWIDTH_SHARE = 0.71  # of the peak bandwidth that reads of random rows reach; fitted
UPDATE_SHARE = 0.49  # of the peak bandwidth where random rows are read, changed and written back; fitted
CACHE_SHARE = 0.75  # of the cache's bandwidth that gathers reach; fitted
STEP_CYCLES = 22.5  # of a multiprocessor for 4 elements in each thread of a warp; fitted
CHECK_CYCLES = 5.6  # of a multiprocessor to check the bounds of an index; the A100's trace
LOOKUP_CYCLES = 41.0  # of a multiprocessor for each lookup in the update: the warp started for it, its gradient; fitted
BLOCK_CYCLES = 4_200.0  # of a multiprocessor for a block that sums the gradients of a row; fitted
BAG_LATENCY, ROW_LATENCY = 1_300.0, 6_700.0  # cycles of a warp for a bag of the lookup, and a row of the update; fitted
WAVES_TO_FILL = 0.25  # share of the resident warps that keeps most of the device busy; an estimate
FORWARD_KERNELS = 2  # bounds check, lookup
BACKWARD_KERNELS = 14  # linearise; sort 2; run lengths 2, their sum 2; clear 4 buffers; find long rows; two updates
SORT_PAIR_BYTES = 2 * (8 + 4)  # read and write one 64-bit key and its 32-bit value
KEY_BYTES = 8  # read for the histogram of keys
PREPARE_BYTES = 62  # per lookup: write the linear index and its sample; run lengths and scan; the A100's trace
RADIX_BITS = 8.0  # of the key per sorting pass (CUB's onesweep)
HOST_FORWARD_LAUNCHES = 6.0  # host time of a call, in launches: 22 us on the B200 host with its 3.5 us
HOST_BACKWARD_LAUNCHES = 31.0  # 108 us there
HOST_LINK_SHARE = 0.65  # of the host link's bandwidth that scattered rows reach in each direction at once; fitted
STREAM_SHARE = 0.85  # of the peak bandwidth that a dense optimizer reaches; an estimate
PREFETCH_KERNELS = 12  # linearise, sort, find unique and missing rows, sort by set, insert, look up; an estimate
DENSE_KERNELS = 3  # clear the gradient, update weights and state; an estimate

_SOURCES = sorted(Path(__file__).parents[1].glob("*/*.py"))
_VERSION = digest(str([(path.name, path.stat().st_mtime_ns) for path in _SOURCES]))
# numba alone notices no change of a compiled function that is called from another file
numba.config.CACHE_DIR = numba.config.CACHE_DIR or str(Path(__file__).parent / "__pycache__" / _VERSION)

Floats = NDArray[np.float64]
Compiled = TypeVar("Compiled", bound=Callable[..., Any])
_MEMORY, _L2, _L2_RATE, _CYCLES, _WARPS, _LAUNCH, _HOST_RATE, _BATCH, _WARP_CYCLES, _HOST = range(10)


def jit(function: Compiled, **options: bool) -> Compiled:
    """Compile a function, whatever checks its shapes in tests; the machine code is cached on disk."""
    return numba.njit(cache=True, error_model="numpy", **options)(inspect.unwrap(function))


def inlined(function: Compiled) -> Compiled:
    """Compile a function into its callers: passing states and menus of many arrays takes longer than small functions do."""
    return jit(function, forceinline=True)


@jit
def copy_into(row: NDArray[Any], values: NDArray[Any] | tuple[int, ...]) -> None:
    """Copy the values of a row; an assignment to a slice takes seconds to compile, since it may raise an error."""
    for n in range(len(values)):
        row[n] = values[n]


def figures_of(spec: AcceleratorSpec, batch_size: int) -> Floats:
    """`[10]` figures for the compiled functions below; infinite for an unknown link to host memory."""
    return np.array(
        [
            spec.memory_bytes_per_s,
            spec.l2_bytes,
            spec.l2_bytes_per_s,
            spec.num_sms * spec.clock_hz,
            spec.num_sms * spec.warps_per_sm,
            spec.launch_s,
            HOST_LINK_SHARE * spec.host_bytes_per_s if spec.host_bytes_per_s else math.inf,
            batch_size,
            spec.num_sms * spec.warps_per_sm * spec.clock_hz,
            spec.host_s or 0.0,
        ],
        np.float64,
    )


def sharding_costs(shards: Shards, batch_size: int, spec: AcceleratorSpec) -> DeviceCosts:
    """`[D]` milliseconds per phase of tables of any sharding type, in float64.

    All shards of a device count as one call of the fused operator. TorchRec calls it once for each sharding type, whose
    launches the host hides while the device works. Collectives follow one another.

    Raises:
        ValueError: rows are spread over more devices than a host has, or tables are in host memory and the accelerator's
            link to it is unknown.
    """
    require_host_link(spec, shards)
    comm_s = exchanges_s(shards, batch_size, spec).expand(shards.num_devices, 2)
    sums = shards.per_device(placed_loads(shards, batch_size))  # [D, L]
    compute_s = torch.from_numpy(operators_s(figures_of(spec, batch_size), sums.numpy()))  # [D, 2]
    return DeviceCosts(1e3 * torch.cat([compute_s[:, :1], comm_s, compute_s[:, 1:]], dim=1))


def require_host_link(spec: AcceleratorSpec, shards: Shards) -> None:
    """Raise a ValueError if tables are in host memory and the accelerator's link to it is unknown."""
    if spec.host_bytes_per_s is None and bool(shards.in_host.any()):
        raise ValueError(
            f"tables are in host memory, but the link of {spec.name!r} to it is unknown; give `host_bandwidth: 63 GB/s` or "
            "the like in the hardware file"
        )


def exchanges_s(shards: Shards, batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, " 2"]:
    """Seconds of all collectives, forward and backward; hosts have as many devices as the task says, or the hardware.

    Raises:
        ValueError: rows are spread over more devices than a host has.
    """
    num_devices, most = shards.num_devices, shards.most_traffic()
    per_host = min(shards.task.devices_per_host or spec.devices_per_node, num_devices)
    shards.require_hosts_of(per_host)
    mean_dims = shards.traffic[:, 0].double().sum() / num_devices
    return collectives_s(most, batch_size, num_devices, spec, per_host, shards.devices_per_host, mean_dims)


@jit
def operators_s(figures: Floats, loads: Floats) -> Floats:
    """`[N, 2]` forward and backward of devices with these loads; 0 for an empty one."""
    times = np.zeros((len(loads), 2))
    for n in range(len(loads)):
        if loads[n, at.COUNT] > 0.5:
            times[n, 0], times[n, 1] = forward_s(figures, loads[n]), backward_s(figures, loads[n])
    return times


@jit
def kernels_s(figures: Floats, loads: Floats) -> Floats:
    """`[N, 2]` forward and backward of devices with these loads, without launches."""
    times = np.zeros((len(loads), 2))
    for n in range(len(loads)):
        load = loads[n]
        times[n, 0] = forward_kernel_s(figures, load) + load[at.LOOKUPS] * CHECK_CYCLES / figures[_CYCLES]
        times[n, 1] = prepare_kernels_s(figures, load) + sort_kernels_s(figures, load) + update_kernels_s(figures, load)
    return times


@inlined
def forward_s(figures: Floats, load: Floats) -> float:
    """Seconds of the forward operator from the host's call to the end of its kernels, with the prefetch of cached tables."""
    seconds = forward_kernel_s(figures, load) + FORWARD_KERNELS * figures[_LAUNCH]
    seconds += load[at.LOOKUPS] * CHECK_CYCLES / figures[_CYCLES]
    seconds = _beside_host(seconds, HOST_FORWARD_LAUNCHES, figures)
    moved_s = load[at.HOST_ROW_BYTES] / figures[_HOST_RATE]
    sorted_bytes = load[at.CACHED_LOOKUPS] * (PREPARE_BYTES + KEY_BYTES + SORT_PAIR_BYTES * _passes(load))
    prefetch_s = (load[at.CACHED_LOOKUPS] > 0) * PREFETCH_KERNELS * figures[_LAUNCH]
    seconds += moved_s + sorted_bytes / (BANDWIDTH_SHARE * figures[_MEMORY]) + prefetch_s
    return seconds


@inlined
def backward_s(figures: Floats, load: Floats) -> float:
    """Seconds of the backward operator and its optimizer, dense optimizers and state in host memory included."""
    seconds = prepare_kernels_s(figures, load) + sort_kernels_s(figures, load) + update_kernels_s(figures, load)
    seconds += (BACKWARD_KERNELS + _passes(load)) * figures[_LAUNCH]
    seconds = _beside_host(seconds, HOST_BACKWARD_LAUNCHES, figures)
    dense_launches_s = (load[at.DENSE_BYTES] > 0) * DENSE_KERNELS * figures[_LAUNCH]
    seconds += load[at.DENSE_BYTES] / (STREAM_SHARE * figures[_MEMORY]) + dense_launches_s
    seconds += load[at.HOST_STATE_BYTES] / figures[_HOST_RATE]
    return seconds


@jit
def forward_kernel_s(figures: Floats, load: Floats) -> float:
    """Seconds of the lookup alone; repeated reads hit the cache, which the most often read rows fill first."""
    share = _in_flight(figures, load[at.COUNT])
    again = served = hotter = 0.0
    for j in range(at.AGAIN_BYTES - at.HOT_BYTES):
        hot = load[at.HOT_BYTES + j] * share
        kept = min(max((figures[_L2] - hotter) / max(hot, 1.0), 0.0), 1.0)
        again += load[at.AGAIN_BYTES + j]
        served += load[at.AGAIN_BYTES + j] * kept
        hotter += hot
    memory_bytes = load[at.STREAM_BYTES] + load[at.FIRST_BYTES] + again - served
    memory_s = memory_bytes / (BANDWIDTH_SHARE * figures[_MEMORY])
    group = 2 if load[at.ABOVE_64] > 0.5 else (1 if load[at.ABOVE_32] > 0.5 else 0)
    steps_s = (
        load[at.STEPS + group] * STEP_CYCLES / figures[_CYCLES] + load[at.BAGS] * BAG_LATENCY / figures[_WARP_CYCLES]
    )
    cache_s = (load[at.STREAM_BYTES] + load[at.READ_BYTES]) / (CACHE_SHARE * figures[_L2_RATE])
    return max(memory_s, math.hypot(steps_s, cache_s)) / _filled(figures, load[at.BAGS])


@jit
def update_kernels_s(figures: Floats, load: Floats) -> float:
    """Seconds of the kernels that sum the gradients of each row and update it."""
    in_flight = load[at.GRAD_BYTES] * _in_flight(figures, load[at.COUNT])
    kept = min(figures[_L2] / max(in_flight, 1.0), 1.0)
    grads_again = max(load[at.GRAD_READ_BYTES] - load[at.GRAD_BYTES], 0.0) * (1 - kept)
    read_s = (load[at.GRAD_BYTES] + grads_again) / (BANDWIDTH_SHARE * figures[_MEMORY])
    memory_s = read_s + load[at.UPDATE_BYTES] / (UPDATE_SHARE * figures[_MEMORY])
    cache_s = (load[at.GRAD_READ_BYTES] + load[at.UPDATE_BYTES]) / (CACHE_SHARE * figures[_L2_RATE])
    waits_s = (load[at.LOOKUPS] * LOOKUP_CYCLES + load[at.BLOCKS] * BLOCK_CYCLES) / figures[_CYCLES]
    waits_s += load[at.UNIQUE] * ROW_LATENCY / figures[_WARP_CYCLES]
    warps = load[at.UNIQUE] + load[at.LOOKUPS] / at.LONG
    return math.hypot(waits_s, max(memory_s, cache_s)) / _filled(figures, warps)


@jit
def prepare_kernels_s(figures: Floats, load: Floats) -> float:
    """Seconds of the kernels that number the indices before the sort, and find their segments after it."""
    seconds = load[at.LOOKUPS] * PREPARE_BYTES / (BANDWIDTH_SHARE * figures[_MEMORY])
    return seconds / _filled(figures, load[at.LOOKUPS] / 32)


@jit
def sort_kernels_s(figures: Floats, load: Floats) -> float:
    """Seconds of the kernels that sort the indices."""
    sort_bytes = load[at.LOOKUPS] * (KEY_BYTES + SORT_PAIR_BYTES * _passes(load))
    return sort_bytes / (BANDWIDTH_SHARE * figures[_MEMORY]) / _filled(figures, load[at.LOOKUPS] / 32)


@jit
def _passes(load: Floats) -> float:
    """Passes over the indices that sort them by the row's number in the shard."""
    return math.ceil(math.log2(max(load[at.ROWS], 2.0)) / RADIX_BITS)


@jit
def _in_flight(figures: Floats, count: float) -> float:
    """Share of a shard's tables in flight: kernels go table by table, a warp per sample, and tables overlap."""
    return min((2 + figures[_WARPS] / figures[_BATCH]) / max(count, 1.0), 1.0)


@jit
def _filled(figures: Floats, warps: float) -> float:
    """Share of the device's speed that this many warps of work reach."""
    return 1 - math.exp(-max(warps, 1.0) / (WAVES_TO_FILL * figures[_WARPS]))


@jit
def _beside_host(kernels_s: float, launches: float, figures: Floats) -> float:
    """The longer of kernels and launches, smoothly (norm of order 4), and the call's share of what kernels wait for."""
    squared, host_squared = kernels_s * kernels_s, (launches * figures[_LAUNCH]) ** 2
    waited_s = figures[_HOST] * launches / (HOST_FORWARD_LAUNCHES + HOST_BACKWARD_LAUNCHES)
    return math.sqrt(math.sqrt(squared * squared + host_squared * host_squared)) + waited_s
