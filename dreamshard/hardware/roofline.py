"""Milliseconds of a placement by an accelerator's figures: the fused operator's kernels, and collectives.

A shard is a row of additive loads (`placed_loads`), and a device's load is the sum of its shards'. The search and the
simulated testbed cost such sums by the same compiled functions. Times are not additive:

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
the rows that they drive out, both ways at once; the backward pass reads and writes the optimizer's state there, which is not
cached. `_missed_rows` says which rows the cache misses. Data-parallel copies: the backward pass clears a dense gradient; a
dense optimizer then reads it and rewrites all rows.

Constants marked as fitted are so together, by least squares on logarithms: to the forward sweep of torchrec PR 2365 (taken
for an A100), times of V100 and H100, one trace of an A100 (HolisticTraceAnalysis), and NeuroShard's cost network of four GPUs
like an RTX 2080 Ti. The host's launches are of one B200 call (FBGEMM PR 5749). `HOST_LINK_SHARE` is fitted to an H100
(NVIDIA/recsys-examples), whose backward pass moves rows at 39 to 44 GB/s in each direction at once, of 63.
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
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.links import VECTOR_BYTES, collectives_s
from dreamshard.tables import BYTES_PER_ELEMENT_STATE, BYTES_PER_ROW_STATE, NUM_BINS, Tables
from dreamshard.tasks import GRADIENT_BYTES, Shards

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

SECTOR_BYTES = 32  # the least that L2 fetches from memory (CUDA C++ best practices guide, "Coalesced access")
INDEX_BYTES = 4  # int32 indices
OFFSET_BYTES = 8  # int64 offsets
LONG, LONGEST = 32, 1024  # lookups of a row above which a block of threads sums their gradients, and most of one block
GROUPS = (8, 16, 32)  # threads that share a row where the widest dim is <= 32, <= 64, above (fbgemm's TBE kernels)

# Columns of the loads; each is summed over the shards of a device.
COUNT, DIM, ROWS, LOOKUPS, UNIQUE = range(5)
STREAM_BYTES, READ_BYTES, FIRST_BYTES = range(5, 8)  # forward: indices and outputs; row reads; of these the first ones
GRAD_READ_BYTES, GRAD_BYTES, UPDATE_BYTES = range(8, 11)  # backward: gradient reads; gradients; rows and state written
ABOVE_32, ABOVE_64 = 11, 12  # tables with a dim above 32, above 64
STEPS = 13  # three columns: warp steps with 8, 16, 32 threads a row
HOT_BYTES = STEPS + len(GROUPS)  # 17 columns: bytes of distinct rows, most often looked up first
AGAIN_BYTES = HOT_BYTES + NUM_BINS  # 17 columns: bytes of reads of those rows after the first
HOST_ROW_BYTES = AGAIN_BYTES + NUM_BINS  # before the lookup: rows into the caches, and as many back
HOST_STATE_BYTES = HOST_ROW_BYTES + 1  # backward: optimizer state in host memory, each way
CACHED_LOOKUPS = HOST_ROW_BYTES + 2  # lookups in caches
DENSE_BYTES = HOST_ROW_BYTES + 3  # backward of copies: gradients cleared; read, weights and state rewritten
BAGS = HOST_ROW_BYTES + 4  # vectors that the forward pass writes
BLOCKS = HOST_ROW_BYTES + 5  # backward: blocks of threads that sum the gradients of often read rows
READ = HOST_ROW_BYTES + 6  # tables with lookups

LOOKUPS_OF_BIN = torch.tensor([1.0] + [0.75 * 2**j + 0.5 for j in range(1, NUM_BINS)], dtype=torch.float64)
"""Lookups of a row in each bin, in its middle."""

_SOURCES = sorted(Path(__file__).parents[1].glob("*/*.py"))
_VERSION = digest(str([(path.name, path.stat().st_mtime_ns) for path in _SOURCES]))
# numba alone notices no change of a compiled function that is called from another file
numba.config.CACHE_DIR = str(Path(numba.config.CACHE_DIR or Path(__file__).parent / "__pycache__") / _VERSION)

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
            spec.cache_bytes,
            spec.cache_bytes_per_s,
            spec.multiprocessors * spec.clock_hz,
            spec.multiprocessors * spec.warps_per_multiprocessor,
            spec.launch_latency_s,
            HOST_LINK_SHARE * spec.host_bytes_per_s if spec.host_bytes_per_s else math.inf,
            batch_size,
            spec.multiprocessors * spec.warps_per_multiprocessor * spec.clock_hz,
            spec.host_wait_s or 0.0,
        ],
        np.float64,
    )


def placed_loads(shards: Shards, batch_size: int) -> Float[Tensor, "S L"]:
    """Loads of each shard, in float64.

    Statistics of another batch size are scaled: lookups by the pooling factor, distinct rows by `_distinct_rows`. A block of
    rows looks up its share of the lookups, but writes partial sums for the whole batch. A data-parallel copy looks up its
    share of the batch. `DIM`, which the all-to-all carries, is that of shards `in_all_to_all` alone.
    """
    task, tables = shards.task, shards.tables
    dim, samples = tables.dim.double(), batch_size * shards.batch_share.double()  # [S]
    lookups, bags = tables.pooling_factor * samples, tables.vectors * samples
    unique = _distinct_rows(tables, lookups)
    quantisation_bytes = task.row_bytes[shards.table] - BYTES_PER_ROW_STATE[task.optimizer]
    row_bytes = _sectors(dim * task.weight_bytes[shards.table] + quantisation_bytes)
    grad_bytes = _sectors(dim * VECTOR_BYTES)
    state_bytes = _sectors(dim * BYTES_PER_ELEMENT_STATE[task.optimizer])
    state_bytes += SECTOR_BYTES * (BYTES_PER_ROW_STATE[task.optimizer] > 0)
    copies, in_host = shards.is_any("data_parallel"), shards.in_host

    state_on_device = torch.where(in_host, 0.0, state_bytes)
    hot, again = _reuse(tables, lookups, unique)  # [S, 17]
    reads = 1 + again / hot.clamp(min=1e-12)  # [S, 17], of a row
    columns = {
        COUNT: torch.ones_like(dim),
        DIM: tables.sent_dim * shards.in_all_to_all,
        ROWS: tables.rows,
        LOOKUPS: lookups,
        UNIQUE: unique,
        STREAM_BYTES: lookups * INDEX_BYTES + bags * (OFFSET_BYTES + dim * VECTOR_BYTES),
        READ_BYTES: lookups * row_bytes,
        FIRST_BYTES: unique * row_bytes,
        GRAD_READ_BYTES: lookups * grad_bytes,
        GRAD_BYTES: torch.minimum(lookups, bags) * grad_bytes,
        UPDATE_BYTES: unique * torch.where(copies, grad_bytes, 2 * (row_bytes + state_on_device)),
        ABOVE_32: dim > 32,
        ABOVE_64: dim > 64,
        **{STEPS + i: lookups * (dim / (4 * threads)).ceil() * threads / 32 for i, threads in enumerate(GROUPS)},
        **dict(enumerate((hot * row_bytes[:, None]).T, HOT_BYTES)),
        **dict(enumerate((again * row_bytes[:, None]).T, AGAIN_BYTES)),
        HOST_ROW_BYTES: in_host * (_missed_rows(shards, unique) if in_host.any() else 0) * row_bytes,
        HOST_STATE_BYTES: in_host * unique * state_bytes,
        CACHED_LOOKUPS: in_host * lookups,
        DENSE_BYTES: copies * 2 * (GRADIENT_BYTES * tables.rows * dim + shards.stored_bytes),
        BAGS: bags,
        BLOCKS: (hot * (reads > LONG) * (reads / LONGEST).clamp(min=1)).sum(dim=1),
        READ: lookups > 0,
    }
    return torch.stack([columns[column].double() for column in sorted(columns)], dim=1)


def _missed_rows(shards: Shards, unique: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Distinct rows of a batch that a full cache on the device misses, if all batches' lookups are drawn alike.

    It holds the rows that are looked up most often, bin by bin. Rows that a batch looks up once stand for all rows that are
    looked up so rarely, so they share what is left of the cache evenly with the rows that the batch does not look up at all:

        misses = sum over bins of rows in the bin x (1 - cached share of the bin)

    Every row that comes in drives out one that was updated, which is written back.
    """
    rows = unique[:, None] * _shares(shards.tables).flip(1)  # [S, 17], most often looked up first
    alike = rows.clone()
    alike[:, -1] += shards.tables.rows - unique
    hotter = alike.cumsum(dim=1) - alike
    resident = shards.tables.rows * shards.cached_share.nan_to_num(1.0)
    kept = ((resident[:, None] - hotter) / alike.clamp(min=1)).clamp(min=0, max=1)
    return (rows * (1 - kept)).sum(dim=1)


def _distinct_rows(tables: Tables, lookups: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Distinct rows among so many lookups, of a batch larger or smaller than that of the statistics.

    Of a smaller batch it is the expectation: a row that occurs `m` times is in a share `s` of the samples with a
    probability of `1 - (1 - s)^m`. In a larger one, rows that occur once stand for as many more that are as rare.
    """
    share = _shares(tables)
    share[:, 0] += share.sum(dim=1) <= 0  # without bins
    times = (lookups / tables.lookups.clamp(min=1))[:, None]  # [T, 1]
    kept = torch.where(times < 1, 1 - (1 - times).clamp(min=0) ** LOOKUPS_OF_BIN, 1.0)
    kept[:, 0] = times[:, 0]
    unique = tables.unique_rows * (share * kept).sum(dim=1)
    return unique.minimum(tables.rows).minimum(lookups)


def _reuse(
    tables: Tables, lookups: Float[Tensor, " T"], unique: Float[Tensor, " T"]
) -> tuple[Float[Tensor, "T 17"], Float[Tensor, "T 17"]]:
    """Distinct rows, and repeated reads of them, per access-count bin, most often read first.

    A bin's rows count as its middle, scaled so that all reads add up to the table's lookups.
    """
    share = _shares(tables)
    rows = unique[:, None] * share  # [T, 17]
    unscaled = rows * (LOOKUPS_OF_BIN - 1)  # reads after the first
    unscaled = unscaled.where(unscaled.sum(dim=1, keepdim=True) > 0, share)  # if bins show no reuse but counts do
    repeated = (lookups - unique).clamp(min=0)[:, None]
    again = unscaled * (repeated / unscaled.sum(dim=1, keepdim=True).clamp(min=1e-12))
    return rows.flip(1), again.flip(1)


def _shares(tables: Tables) -> Float[Tensor, "T 17"]:
    """Of the distinct rows in each access-count bin."""
    share = tables.bins.double()
    return share / share.sum(dim=1, keepdim=True).clamp(min=1e-12)


def _sectors(num_bytes: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return (num_bytes / SECTOR_BYTES).ceil() * SECTOR_BYTES


def sharding_costs(shards: Shards, batch_size: int, spec: AcceleratorSpec) -> DeviceCosts:
    """`[D]` milliseconds per phase of tables of any sharding type, in float64; collectives follow one another.

    All shards of a device count as one call of the fused operator. TorchRec calls it once for each sharding type, whose
    launches the host hides while the device works.

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
    """Seconds of all collectives, forward and backward; a ValueError says that rows are spread over more than a host."""
    num_devices, carried = shards.num_devices, shards.carried.double()
    per_host = min(shards.task.devices_per_host or spec.devices_per_host, num_devices)
    shards.require_hosts_of(per_host)
    most, mean_dims = carried.amax(dim=0), carried[:, 0].mean()
    return collectives_s(most, batch_size, num_devices, spec, per_host, shards.devices_per_host, mean_dims)


@jit
def operators_s(figures: Floats, loads: Floats) -> Floats:
    """`[N, 2]` forward and backward of devices with these loads; 0 for an empty one."""
    times = np.zeros((len(loads), 2))
    for n in range(len(loads)):
        if loads[n, COUNT] > 0.5:
            times[n, 0], times[n, 1] = forward_s(figures, loads[n]), backward_s(figures, loads[n])
    return times


def kernels_s(figures: Floats, loads: Floats) -> Floats:
    """`operators_s` without launches and waits for the host."""
    kernels_only = figures.copy()
    kernels_only[[_LAUNCH, _HOST]] = 0
    times: Floats = operators_s(kernels_only, loads)
    return times


@inlined
def forward_s(figures: Floats, load: Floats) -> float:
    """Seconds of the forward operator from the host's call to the end of its kernels, with the prefetch of cached tables."""
    seconds = forward_kernel_s(figures, load) + FORWARD_KERNELS * figures[_LAUNCH]
    seconds += load[LOOKUPS] * CHECK_CYCLES / figures[_CYCLES]
    seconds = _beside_host(seconds, HOST_FORWARD_LAUNCHES, figures)
    moved_s = load[HOST_ROW_BYTES] / figures[_HOST_RATE]
    sorted_bytes = load[CACHED_LOOKUPS] * (PREPARE_BYTES + KEY_BYTES + SORT_PAIR_BYTES * _passes(load))
    prefetch_s = (load[CACHED_LOOKUPS] > 0) * PREFETCH_KERNELS * figures[_LAUNCH]
    return seconds + moved_s + sorted_bytes / (BANDWIDTH_SHARE * figures[_MEMORY]) + prefetch_s


@inlined
def backward_s(figures: Floats, load: Floats) -> float:
    """Seconds of the backward operator and its optimizer, dense optimizers and state in host memory included."""
    seconds = sort_kernels_s(figures, load, PREPARE_BYTES) + update_kernels_s(figures, load)
    seconds += (BACKWARD_KERNELS + _passes(load)) * figures[_LAUNCH]
    seconds = _beside_host(seconds, HOST_BACKWARD_LAUNCHES, figures)
    dense_launches_s = (load[DENSE_BYTES] > 0) * DENSE_KERNELS * figures[_LAUNCH]
    seconds += load[DENSE_BYTES] / (STREAM_SHARE * figures[_MEMORY]) + dense_launches_s
    return seconds + load[HOST_STATE_BYTES] / figures[_HOST_RATE]


@jit
def forward_kernel_s(figures: Floats, load: Floats) -> float:
    """Seconds of the lookup alone; repeated reads hit the cache, which the most often read rows fill first."""
    share = _in_flight(figures, load[READ])
    again = served = hotter = 0.0
    for j in range(AGAIN_BYTES - HOT_BYTES):
        hot = load[HOT_BYTES + j] * share
        kept = min(max((figures[_L2] - hotter) / max(hot, 1.0), 0.0), 1.0)
        again += load[AGAIN_BYTES + j]
        served += load[AGAIN_BYTES + j] * kept
        hotter += hot
    memory_bytes = load[STREAM_BYTES] + load[FIRST_BYTES] + again - served
    memory_s = memory_bytes / (BANDWIDTH_SHARE * figures[_MEMORY])
    group = 2 if load[ABOVE_64] > 0.5 else (1 if load[ABOVE_32] > 0.5 else 0)
    steps_s = load[STEPS + group] * STEP_CYCLES / figures[_CYCLES] + load[BAGS] * BAG_LATENCY / figures[_WARP_CYCLES]
    cache_s = (load[STREAM_BYTES] + load[READ_BYTES]) / (CACHE_SHARE * figures[_L2_RATE])
    return max(memory_s, math.hypot(steps_s, cache_s)) / _filled(figures, load[BAGS])


@jit
def update_kernels_s(figures: Floats, load: Floats) -> float:
    """Seconds of the kernels that sum the gradients of each row and update it."""
    in_flight = load[GRAD_BYTES] * _in_flight(figures, load[READ])
    kept = min(figures[_L2] / max(in_flight, 1.0), 1.0)
    grads_again = max(load[GRAD_READ_BYTES] - load[GRAD_BYTES], 0.0) * (1 - kept)
    read_s = (load[GRAD_BYTES] + grads_again) / (BANDWIDTH_SHARE * figures[_MEMORY])
    memory_s = read_s + load[UPDATE_BYTES] / (UPDATE_SHARE * figures[_MEMORY])
    cache_s = (load[GRAD_READ_BYTES] + load[UPDATE_BYTES]) / (CACHE_SHARE * figures[_L2_RATE])
    waits_s = (load[LOOKUPS] * LOOKUP_CYCLES + load[BLOCKS] * BLOCK_CYCLES) / figures[_CYCLES]
    waits_s += load[UNIQUE] * ROW_LATENCY / figures[_WARP_CYCLES]
    warps = load[UNIQUE] + load[LOOKUPS] / LONG
    return math.hypot(waits_s, max(memory_s, cache_s)) / _filled(figures, warps)


@jit
def sort_kernels_s(figures: Floats, load: Floats, more_bytes: float = 0.0) -> float:
    """Seconds of the kernels that sort the indices, if they move `more_bytes` for each."""
    sort_bytes = load[LOOKUPS] * (more_bytes + KEY_BYTES + SORT_PAIR_BYTES * _passes(load))
    return sort_bytes / (BANDWIDTH_SHARE * figures[_MEMORY]) / _filled(figures, load[LOOKUPS] / 32)


@jit
def _passes(load: Floats) -> float:
    """Passes over the indices that sort them by the row's number in the shard."""
    return math.ceil(math.log2(max(load[ROWS], 2.0)) / RADIX_BITS)


@jit
def _in_flight(figures: Floats, count: float) -> float:
    """Share of a shard's read tables in flight: kernels go table by table, a warp per sample, and tables overlap."""
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
