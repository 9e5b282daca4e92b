"""Seconds that only tables in host memory and data-parallel copies take, beside the fused operator's kernels.

- Host memory: before the lookup, fbgemm's prefetch sorts the cached lookups, fetches missing rows over the host's link and
  writes the rows back that they drive out, both ways at once. The backward pass reads and writes the optimizer's state there.
- Data-parallel: the backward pass clears a dense gradient; a dense optimizer then reads it and rewrites all rows.

`HOST_LINK_SHARE` is fitted to public times of an H100 (NVIDIA/recsys-examples), whose backward pass reads and writes rows of
128 columns, or two moments of each, in host memory: 39 to 44 GB/s in each direction at once, of 63.
`python -m tests.benchmarks presets` compares them. No public time tells how many rows a full cache misses.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.kernels import (
    BANDWIDTH_SHARE,
    PREPARE_BYTES,
    SORT_PAIR_BYTES,
    backward_call_s,
    forward_call_s,
    sorting_passes,
)
from dreamshard.testbeds.accelerators.loads import (
    CACHED_LOOKUPS,
    DENSE_BYTES,
    HOST_READ_BYTES,
    HOST_STATE_BYTES,
    HOST_WRITTEN_BYTES,
)

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
            f"tables are in host memory, but the link of {spec.name!r} to it is unknown, so they have no cost; give "
            "`host_bandwidth: 63 GB/s`, or whatever it is, in the hardware file, or keep all tables in device memory"
        )
    return HOST_LINK_SHARE * spec.host_bytes_per_s
