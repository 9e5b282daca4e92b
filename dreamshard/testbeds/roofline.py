"""The model behind the simulated testbed, a roofline batched over placements, in float64.

A table is a row of additive loads (`table_loads`), a shard is the sum of its tables' rows, and `phase_costs` turns sums
into milliseconds. Moving a table changes two sums by one row each, which makes long annealing cheap. Times are not
additive:

- kernels are launched once per shard, and a shard with little work does not fill the device;
- the widest table of a shard sets how many threads share a row, so lanes idle for narrower tables;
- repeated reads are served from the cache as far as the hottest rows of the tables in flight fit into it;
- the backward pass sorts all indices of the shard, with one more pass for every 8 bits of its total rows;
- all devices wait in the all-to-all for the one with the largest sum of dims.

The global batch of a step is `batch_size`. A device looks up the whole batch for its own tables; the all-to-all then
leaves it with `batch_size / D` samples of all tables. Pooled vectors and gradients are fp32.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, NUM_BINS, Optimizer, Precision, Tables
from dreamshard.testbeds.links import VECTOR_BYTES, all_to_all_s, vector_bytes
from dreamshard.testbeds.specs import AcceleratorSpec

SECTOR_BYTES = 32  # the least that L2 fetches from memory (CUDA C++ best practices guide, "Coalesced access")
INDEX_BYTES = 4  # int32 indices
OFFSET_BYTES = 8  # int64 offsets
GROUPS = (8, 16, 32)  # threads that share a row where the widest dim is <= 32, <= 64, above (fbgemm's TBE kernels)
STEP_INSTRUCTIONS = 24  # warp instructions per 4 elements a thread of a row: address, load, four FMA, loop
ISSUE_PER_CLOCK = 2.0  # warp instructions a multiprocessor sustains of its 4 per clock on gathers
BANDWIDTH_SHARE = 0.8  # of the peak bandwidth that random gathers reach
WAVES_TO_FILL = 2.0  # waves of resident warps at which a kernel reaches half of the device's speed
FORWARD_KERNELS = 2  # bounds check, lookup
BACKWARD_KERNELS = 9  # linearise, sort (two fixed), run lengths, scan, long rows, gradient by row, optimizer
SORT_PAIR_BYTES = 2 * (8 + 4)  # read and write one 64-bit key and its 32-bit value
PREPARE_BYTES = 24 + 20  # per lookup: write the linear index and its sample; run lengths and scan
RADIX_BITS = 8.0  # of the key per sorting pass (CUB's onesweep)
MEMBERSHIP_ENTRIES = 2**22  # of the [B, D, T] membership that is in memory at once

# Columns of the loads; each is summed over the tables of a shard.
COUNT, DIM, ROWS, LOOKUPS, UNIQUE = 0, 1, 2, 3, 4
STREAM_BYTES, READ_BYTES, FIRST_BYTES = 5, 6, 7  # forward: indices and outputs; row reads; of these the first ones
GRAD_READ_BYTES, GRAD_BYTES, UPDATE_BYTES = 8, 9, 10  # backward: gradient reads; gradients; rows and state written
ABOVE_32, ABOVE_64 = 11, 12  # tables with a dim above 32, above 64
STEPS = 13  # three columns: warp steps with 8, 16, 32 threads a row
HOT_BYTES = STEPS + len(GROUPS)  # 17 columns: bytes of distinct rows, most often looked up first
AGAIN_BYTES = HOT_BYTES + NUM_BINS  # 17 columns: bytes of reads of those rows after the first
NUM_LOADS = AGAIN_BYTES + NUM_BINS


def table_loads(tables: Tables, batch_size: int, precision: Precision, optimizer: Optimizer) -> Float[Tensor, "T K"]:
    """Loads of each table, in float64.

    Statistics of another batch size are scaled: lookups by the pooling factor, distinct rows in proportion, at most
    the table's rows.
    """
    double = torch.float64
    dim, rows = tables.dim.to(double), tables.rows.to(double)  # [T]
    lookups = tables.pooling_factor.to(double) * batch_size
    distinct = tables.unique_rows.to(double) / tables.lookups.to(double).clamp(min=1)
    unique = torch.minimum(torch.minimum(lookups * distinct, rows), lookups)
    row_bytes = _sectors(dim * BYTES_PER_WEIGHT[precision])
    state_bytes = SECTOR_BYTES if BYTES_PER_ROW_STATE[optimizer] else 0
    grad_bytes = _sectors(dim * VECTOR_BYTES)

    loads = torch.zeros(len(tables), NUM_LOADS, dtype=double)
    loads[:, COUNT] = 1
    loads[:, DIM] = dim
    loads[:, ROWS] = rows
    loads[:, LOOKUPS] = lookups
    loads[:, UNIQUE] = unique
    loads[:, STREAM_BYTES] = lookups * INDEX_BYTES + batch_size * (OFFSET_BYTES + dim * VECTOR_BYTES)
    loads[:, READ_BYTES] = lookups * row_bytes
    loads[:, FIRST_BYTES] = unique * row_bytes
    loads[:, GRAD_READ_BYTES] = lookups * grad_bytes
    loads[:, GRAD_BYTES] = lookups.clamp(max=batch_size) * grad_bytes
    loads[:, UPDATE_BYTES] = 2 * unique * (row_bytes + state_bytes)
    loads[:, ABOVE_32] = dim > 32
    loads[:, ABOVE_64] = dim > 64
    for i, threads in enumerate(GROUPS):
        loads[:, STEPS + i] = lookups * (dim / (4 * threads)).ceil() * threads / 32
    hot, again = _reuse(tables, lookups, unique)  # [T, 17]
    loads[:, HOT_BYTES:AGAIN_BYTES] = hot * row_bytes[:, None]
    loads[:, AGAIN_BYTES:] = again * row_bytes[:, None]
    return loads


def shard_loads(loads: Float[Tensor, "T K"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D K"]:
    """Sum the tables' loads per device; negative entries of `device` are not placed yet."""
    at_once = max(1, MEMBERSHIP_ENTRIES // (num_devices * device.shape[1]))
    devices = torch.arange(num_devices)[None, :, None]
    return torch.cat([(part[:, None, :] == devices).to(loads.dtype) @ loads for part in device.split(at_once)])


def phase_costs(
    loads: Float[Tensor, "*B D K"], batch_size: int, spec: AcceleratorSpec, devices_per_host: int | None = None
) -> DeviceCosts:
    """Milliseconds per phase and device for summed loads; a device without tables computes for 0 ms."""
    busy = loads[..., COUNT] > 0.5  # [*B, D]
    comm_s = all_to_all_s(vector_bytes(loads[..., DIM], batch_size), spec, devices_per_host)
    return DeviceCosts(
        forward_compute_ms=torch.where(busy, _forward_s(loads, batch_size, spec), 0.0) * 1e3,
        forward_comm_ms=comm_s * 1e3,
        backward_comm_ms=comm_s * 1e3,
        backward_compute_ms=torch.where(busy, _backward_s(loads, batch_size, spec), 0.0) * 1e3,
    )


def _forward_s(loads: Float[Tensor, "*B D K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B D"]:
    read_again = loads[..., AGAIN_BYTES:].sum(dim=-1) - _served_from_cache(loads, batch_size, spec)
    memory_bytes = loads[..., STREAM_BYTES] + loads[..., FIRST_BYTES] + read_again
    cache_bytes = loads[..., STREAM_BYTES] + loads[..., READ_BYTES]
    seconds = _slowest(memory_bytes, cache_bytes, _warp_steps(loads), spec)
    return seconds / _filled(batch_size * loads[..., COUNT], spec) + FORWARD_KERNELS * spec.launch_s


def _backward_s(loads: Float[Tensor, "*B D K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B D"]:
    passes = (loads[..., ROWS].clamp(min=2).log2() / RADIX_BITS).ceil()
    sort_bytes = loads[..., LOOKUPS] * (PREPARE_BYTES + SORT_PAIR_BYTES * passes)
    grads_in_flight = loads[..., GRAD_BYTES] * _in_flight_share(loads[..., COUNT], batch_size, spec)
    kept = (spec.l2_bytes / grads_in_flight.clamp(min=1)).clamp(max=1)
    grads_again = (loads[..., GRAD_READ_BYTES] - loads[..., GRAD_BYTES]).clamp(min=0) * (1 - kept)
    update_bytes = loads[..., UPDATE_BYTES]
    seconds = _slowest(
        loads[..., GRAD_BYTES] + grads_again + update_bytes,
        loads[..., GRAD_READ_BYTES] + update_bytes,
        _warp_steps(loads),
        spec,
    )
    sort_s = sort_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    launch_s = (BACKWARD_KERNELS + passes) * spec.launch_s
    # Sorting parallelises over lookups, the update over distinct rows.
    sort_s = sort_s / _filled(loads[..., LOOKUPS] / 32, spec)
    return seconds / _filled(loads[..., UNIQUE], spec) + sort_s + launch_s


def _slowest(
    memory_bytes: Float[Tensor, "*B D"],
    cache_bytes: Float[Tensor, "*B D"],
    warp_steps: Float[Tensor, "*B D"],
    spec: AcceleratorSpec,
) -> Float[Tensor, "*B D"]:
    """The roofline: memory, cache and instruction issue overlap, so the slowest of them counts."""
    memory_s = memory_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    cache_s = cache_bytes / (BANDWIDTH_SHARE * spec.l2_bytes_per_s)
    issue_s = warp_steps * STEP_INSTRUCTIONS / (ISSUE_PER_CLOCK * spec.num_sms * spec.clock_hz)
    return torch.maximum(torch.maximum(memory_s, cache_s), issue_s)


def _warp_steps(loads: Float[Tensor, "*B D K"]) -> Float[Tensor, "*B D"]:
    """Steps of whole warps, with the thread group that the widest table of the shard needs."""
    narrow, middle, wide = (loads[..., STEPS + i] for i in range(len(GROUPS)))
    above_32, above_64 = loads[..., ABOVE_32] > 0.5, loads[..., ABOVE_64] > 0.5
    return torch.where(above_64, wide, torch.where(above_32, middle, narrow))


def _filled(warps: Float[Tensor, "*B D"], spec: AcceleratorSpec) -> Float[Tensor, "*B D"]:
    """Share of the device's speed that this many warps of work reach; tends to 1."""
    warps = warps.clamp(min=1)
    return warps / (warps + WAVES_TO_FILL * spec.resident_warps)


def _in_flight_share(count: Float[Tensor, "*B D"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B D"]:
    """Share of a shard's tables in flight: kernels go table by table, a warp per sample, and tables overlap."""
    return ((2 + spec.resident_warps / batch_size) / count.clamp(min=1)).clamp(max=1)


def _served_from_cache(loads: Float[Tensor, "*B D K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B D"]:
    """Bytes of repeated reads that hit the cache, which the most often read rows fill first."""
    share = _in_flight_share(loads[..., COUNT], batch_size, spec)  # [*B, D]
    hot = loads[..., HOT_BYTES:AGAIN_BYTES] * share[..., None]  # [*B, D, 17]
    hotter = hot.cumsum(dim=-1) - hot
    kept = ((spec.l2_bytes - hotter) / hot.clamp(min=1)).clamp(min=0, max=1)
    return (loads[..., AGAIN_BYTES:] * kept).sum(dim=-1)


def _reuse(
    tables: Tables, lookups: Float[Tensor, " T"], unique: Float[Tensor, " T"]
) -> tuple[Float[Tensor, "T 17"], Float[Tensor, "T 17"]]:
    """Distinct rows, and repeated reads of them, per access-count bin, most often read first.

    A bin's rows count as its middle, scaled so that all reads add up to the table's lookups.
    """
    middle = torch.tensor([1.0] + [0.75 * 2**j + 0.5 for j in range(1, NUM_BINS)], dtype=torch.float64)  # [17]
    share = tables.bins.to(torch.float64)
    share = share / share.sum(dim=1, keepdim=True).clamp(min=1e-12)
    rows = unique[:, None] * share  # [T, 17]
    unscaled = rows * (middle - 1)  # reads after the first
    again = unscaled * ((lookups - unique) / unscaled.sum(dim=1).clamp(min=1e-12)).clamp(min=0)[:, None]
    unbinned = (unscaled.sum(dim=1) <= 0)[:, None] * (lookups - unique).clamp(min=0)[:, None]
    again = again + unbinned * share  # where bins show no reuse but counts do
    return rows.flip(1), again.flip(1)


def _sectors(num_bytes: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return (num_bytes / SECTOR_BYTES).ceil() * SECTOR_BYTES
