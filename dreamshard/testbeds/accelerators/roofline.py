"""The model behind the simulated testbed, a roofline batched over placements, in float64.

A table is a row of additive loads (`table_loads`), a shard is the sum of its tables' rows, and `phase_costs` turns sums
into milliseconds. Moving a table changes two sums by one row each, which makes long annealing cheap. Times are not
additive:

- a shard with little work does not fill the device, and costs what the host needs to launch its kernels;
- the widest table of a shard sets how many threads share a row, so lanes idle for narrower tables;
- repeated reads are served from the cache as far as the hottest rows of the tables in flight fit into it;
- the backward pass sorts all indices of the shard, with one more pass for every 8 bits of its total rows;
- all devices wait in the all-to-all for the one with the largest sum of dims.

The global batch of a step is `batch_size`. A device looks up the whole batch for its own tables; the all-to-all then
leaves it with `batch_size / D` samples of all tables. Pooled vectors and gradients are fp32.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.kernels import backward_call_s, forward_call_s
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.loads import COUNT, DIM


def phase_costs(
    loads: Float[Tensor, "*B D K"], batch_size: int, spec: AcceleratorSpec, devices_per_host: int | None = None
) -> DeviceCosts:
    """Milliseconds per phase and device for summed loads; a device without tables computes for 0 ms."""
    busy = loads[..., COUNT] > 0.5  # [*B, D]
    comm_s = all_to_all_s(vector_bytes(loads[..., DIM], batch_size), spec, devices_per_host)
    return DeviceCosts(
        forward_compute_ms=torch.where(busy, forward_call_s(loads, batch_size, spec), 0.0) * 1e3,
        forward_comm_ms=comm_s * 1e3,
        backward_comm_ms=comm_s * 1e3,
        backward_compute_ms=torch.where(busy, backward_call_s(loads, batch_size, spec), 0.0) * 1e3,
    )
