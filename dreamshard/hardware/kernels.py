"""Seconds of the fused operator's kernels on summed loads, as FBGEMM's CUDA code runs them (pytorch/FBGEMM at 71d6f8b2).

- Forward: a group of 8, 16 or 32 threads reads a row, by the widest dim of the shard; a warp looks up the bag of a sample.
- Backward: all indices are sorted, so that the lookups of a row are one segment. A warp sums a segment's gradients and
  updates its row. Segments of `SEGMENT` lookups and more are split among the warps of a block, those above 1024 lookups
  (`max_segment_length_per_cta`) among blocks, which add up their sums by one atomic addition per block and column:
  too few to count. So work spreads over lookups, never over distinct rows alone.
- Host: a call of the operator takes the host a while to launch, which bounds small calls from below.

Fitted to the forward sweep of torchrec PR 2365 (taken for an A100) and the V100's times, and to nothing else: `STEP_CYCLES`,
`BANDWIDTH_SHARE`, `UPDATE_SHARE`. The host's launches are those of one B200 call (FBGEMM PR 5749). `python -m
tests.benchmarks presets` compares all public times.

Beside these, tables in host memory and data-parallel copies take time:

- Host memory: before the lookup, fbgemm's prefetch sorts the cached lookups, fetches missing rows over the host's link and
  writes the rows back that they drive out, both ways at once. The backward pass reads and writes the optimizer's state there.
- Data-parallel: the backward pass clears a dense gradient; a dense optimizer then reads it and rewrites all rows.

`HOST_LINK_SHARE` is fitted to public times of an H100 (NVIDIA/recsys-examples), whose backward pass reads and writes rows of
128 columns, or two moments of each, in host memory: 39 to 44 GB/s in each direction at once, of 63. No public time tells how
many rows a full cache misses.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.loads import (
    ABOVE_32,
    ABOVE_64,
    AGAIN_BYTES,
    CACHED_LOOKUPS,
    COUNT,
    DENSE_BYTES,
    FIRST_BYTES,
    GRAD_BYTES,
    GRAD_READ_BYTES,
    GROUPS,
    HOST_READ_BYTES,
    HOST_STATE_BYTES,
    HOST_WRITTEN_BYTES,
    HOT_BYTES,
    LOOKUPS,
    NUM_LOADS,
    READ_BYTES,
    ROWS,
    STEPS,
    STREAM_BYTES,
    UNIQUE,
    UPDATE_BYTES,
)

BANDWIDTH_SHARE = 0.69  # of the peak bandwidth that reads of random rows reach; fitted
UPDATE_SHARE = 0.48  # of the peak bandwidth where random rows are read, changed and written back; fitted
STEP_CYCLES = 25.0  # of a multiprocessor for 4 elements in each thread of a warp; fitted
CACHE_SHARE = 0.8  # of the cache's bandwidth that gathers reach; an estimate
WAVES_TO_FILL = 0.25  # share of the resident warps that keeps most of the device busy; an estimate
SEGMENT = 32  # lookups of one row above which several warps share it (`max_segment_length_per_warp`)
FORWARD_KERNELS = 2  # bounds check, lookup
BACKWARD_KERNELS = 14  # linearise; sort 2; run lengths 2, their sum 2; clear 4 buffers; find long rows; two updates
SORT_PAIR_BYTES = 2 * (8 + 4)  # read and write one 64-bit key and its 32-bit value
PREPARE_BYTES = 24 + 20  # per lookup: write the linear index and its sample; run lengths and scan
RADIX_BITS = 8.0  # of the key per sorting pass (CUB's onesweep)
HOST_FORWARD_LAUNCHES = 6.0  # host time of a call, in launches: 22 us on the B200 host with its 3.5 us
HOST_BACKWARD_LAUNCHES = 31.0  # 108 us there
HOST_OVERLAP = 4.0  # exponent of the mean of host and device time: 1 adds them up, infinity takes the longer
HOST_LINK_SHARE = 0.65  # of the host link's bandwidth that scattered rows reach in each direction at once; fitted
STREAM_SHARE = 0.85  # of the peak bandwidth that a dense optimizer reaches; an estimate
PREFETCH_KERNELS = 12  # linearise, sort, find unique and missing rows, sort by set, insert, look up; an estimate
DENSE_KERNELS = 3  # clear the gradient, update weights and state; an estimate


def placed_forward_s(loads: Float[Tensor, "*B L"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the prefetch of cached tables and of the lookup, for sums of `placed_loads`.

    Raises:
        ValueError: tables are in host memory, and the accelerator's link to it is unknown.
    """
    cached = loads[..., CACHED_LOOKUPS] > 0
    seconds = forward_call_s(loads, batch_size, spec)
    if not bool(cached.any()):
        return seconds
    moved_bytes = torch.maximum(loads[..., HOST_READ_BYTES], loads[..., HOST_WRITTEN_BYTES])
    sorted_bytes = loads[..., CACHED_LOOKUPS] * (PREPARE_BYTES + SORT_PAIR_BYTES * sorting_passes(loads))
    sort_s = sorted_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s) + PREFETCH_KERNELS * spec.launch_s
    return seconds + torch.where(cached, moved_bytes / host_bytes_per_s(spec) + sort_s, 0.0)


def placed_backward_s(loads: Float[Tensor, "*B L"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of gradients and optimizers, dense ones included, for sums of `placed_loads`; raises as the forward pass."""
    seconds = backward_call_s(loads, batch_size, spec)
    dense_bytes, state_bytes = loads[..., DENSE_BYTES], loads[..., HOST_STATE_BYTES]
    dense_s = dense_bytes / (STREAM_SHARE * spec.memory_bytes_per_s) + DENSE_KERNELS * spec.launch_s
    seconds = seconds + torch.where(dense_bytes > 0, dense_s, 0.0)
    if bool((state_bytes > 0).any()):
        seconds = seconds + state_bytes / host_bytes_per_s(spec)
    return seconds


def host_bytes_per_s(spec: AcceleratorSpec) -> float:
    """Bytes per second that rows reach over the link to the host's memory, in each direction.

    Raises:
        ValueError: the link is unknown.
    """
    if spec.host_bytes_per_s is None:
        raise ValueError(
            f"tables are in host memory, but the link of {spec.name!r} to it is unknown; give `host_bandwidth: 63 GB/s` or "
            "the like in the hardware file, or keep all tables in device memory"
        )
    return HOST_LINK_SHARE * spec.host_bytes_per_s


def forward_call_s(loads: Float[Tensor, "*B K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the forward operator, from the host's call to the end of its kernels."""
    kernels_s = forward_kernel_s(loads, batch_size, spec) + FORWARD_KERNELS * spec.launch_s
    return _beside_host(kernels_s, HOST_FORWARD_LAUNCHES * spec.launch_s)


def backward_call_s(loads: Float[Tensor, "*B K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the backward operator with its optimizer, from the host's call to the end of its kernels."""
    passes = sorting_passes(loads)
    kernels_s = sort_kernels_s(loads, spec) + update_kernels_s(loads, batch_size, spec)
    return _beside_host(kernels_s + (BACKWARD_KERNELS + passes) * spec.launch_s, HOST_BACKWARD_LAUNCHES * spec.launch_s)


def forward_kernel_s(loads: Float[Tensor, "*B K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the lookup alone."""
    read_again = loads[..., AGAIN_BYTES:NUM_LOADS].sum(dim=-1) - _served_from_cache(loads, batch_size, spec)
    memory_bytes = loads[..., STREAM_BYTES] + loads[..., FIRST_BYTES] + read_again
    memory_s = memory_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    warps_s = _warps_s(loads, loads[..., STREAM_BYTES] + loads[..., READ_BYTES], spec)
    return torch.maximum(memory_s, warps_s) / _filled(batch_size * loads[..., COUNT], spec)


def update_kernels_s(loads: Float[Tensor, "*B K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the kernels that sum the gradients of each row and update it."""
    grads_in_flight = loads[..., GRAD_BYTES] * _in_flight_share(loads[..., COUNT], batch_size, spec)
    kept = (spec.l2_bytes / grads_in_flight.clamp(min=1)).clamp(max=1)
    grads_again = (loads[..., GRAD_READ_BYTES] - loads[..., GRAD_BYTES]).clamp(min=0) * (1 - kept)
    read_s = (loads[..., GRAD_BYTES] + grads_again) / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    memory_s = read_s + loads[..., UPDATE_BYTES] / (UPDATE_SHARE * spec.memory_bytes_per_s)
    warps_s = _warps_s(loads, loads[..., GRAD_READ_BYTES] + loads[..., UPDATE_BYTES], spec)
    return torch.maximum(memory_s, warps_s) / _filled(loads[..., UNIQUE] + loads[..., LOOKUPS] / SEGMENT, spec)


def sort_kernels_s(loads: Float[Tensor, "*B K"], spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Seconds of the kernels that sort the indices and find their segments."""
    sort_bytes = loads[..., LOOKUPS] * (PREPARE_BYTES + SORT_PAIR_BYTES * sorting_passes(loads))
    seconds = sort_bytes / (BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    return seconds / _filled(loads[..., LOOKUPS] / 32, spec)


def sorting_passes(loads: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
    """Passes over the indices that sort them by the row's number in the shard."""
    return (loads[..., ROWS].clamp(min=2).log2() / RADIX_BITS).ceil()


def _beside_host(kernels_s: Float[Tensor, "*B"], host_s: float) -> Float[Tensor, "*B"]:
    """The longer of both, smoothly: the first kernels wait for the host, and it is done before the last."""
    return torch.pow(torch.pow(kernels_s, HOST_OVERLAP) + host_s**HOST_OVERLAP, 1 / HOST_OVERLAP)


def _warps_s(
    loads: Float[Tensor, "*B K"], cache_bytes: Float[Tensor, "*B"], spec: AcceleratorSpec
) -> Float[Tensor, "*B"]:
    """Seconds that the warps take where memory does not hold them up: their steps, and the cache's bytes."""
    narrow, middle, wide = (loads[..., STEPS + i] for i in range(len(GROUPS)))
    above_32, above_64 = loads[..., ABOVE_32] > 0.5, loads[..., ABOVE_64] > 0.5
    steps = torch.where(above_64, wide, torch.where(above_32, middle, narrow))
    steps_s = steps * STEP_CYCLES / (spec.num_sms * spec.clock_hz)
    return steps_s + cache_bytes / (CACHE_SHARE * spec.l2_bytes_per_s)


def _filled(warps: Float[Tensor, "*B"], spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Share of the device's speed that this many warps of work reach."""
    return 1 - torch.exp(-warps.clamp(min=1) / (WAVES_TO_FILL * spec.resident_warps))


def _in_flight_share(count: Float[Tensor, "*B"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Share of a shard's tables in flight: kernels go table by table, a warp per sample, and tables overlap."""
    return ((2 + spec.resident_warps / batch_size) / count.clamp(min=1)).clamp(max=1)


def _served_from_cache(loads: Float[Tensor, "*B K"], batch_size: int, spec: AcceleratorSpec) -> Float[Tensor, "*B"]:
    """Bytes of repeated reads that hit the cache, which the most often read rows fill first."""
    share = _in_flight_share(loads[..., COUNT], batch_size, spec)
    hot = loads[..., HOT_BYTES:AGAIN_BYTES] * share[..., None]  # [*B, 17]
    hotter = hot.cumsum(dim=-1) - hot
    kept = ((spec.l2_bytes - hotter) / hot.clamp(min=1)).clamp(min=0, max=1)
    return (loads[..., AGAIN_BYTES:NUM_LOADS] * kept).sum(dim=-1)
