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
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.kernels import backward_call_s, forward_call_s, placed_backward_s, placed_forward_s
from dreamshard.hardware.links import all_to_all_s, collectives_s, vector_bytes
from dreamshard.hardware.loads import COUNT, DIM, placed_loads, shard_loads
from dreamshard.placement import ON_ONE_HOST
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask


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


def sharding_costs(task: PlacementTask, shards: Shards, batch_size: int, spec: AcceleratorSpec) -> DeviceCosts:
    """Milliseconds per phase and device of tables that are sharded in any way, in float64.

    All shards of a device count as one call of the fused operator. TorchRec calls it once for each way to shard, whose
    launches the host hides while the device works. Collectives follow one another.

    Raises:
        ValueError: rows are spread over more devices than a host has, or tables are in host memory and the accelerator's
            link to it is unknown.
    """
    per_host = link_devices_per_host(task, shards, spec)
    loads = shard_loads(placed_loads(task, shards, batch_size), shards.device[None], shards.num_devices)[0]  # [D, L]
    busy = loads[:, COUNT] > 0.5
    comm = collectives_s(shards.collectives(), batch_size, spec, per_host)
    return DeviceCosts(
        forward_compute_ms=torch.where(busy, placed_forward_s(loads, batch_size, spec), 0.0) * 1e3,
        forward_comm_ms=comm.forward_s * 1e3,
        backward_comm_ms=comm.backward_s * 1e3,
        backward_compute_ms=torch.where(busy, placed_backward_s(loads, batch_size, spec), 0.0) * 1e3,
    )


def link_devices_per_host(task: PlacementTask, shards: Shards, spec: AcceleratorSpec) -> int:
    """Devices that reach each other by the node's own link: as the task says, else as many as the hardware has.

    Raises:
        ValueError: a table's rows are spread over the devices of one host, and these are more.
    """
    per_host = min(task.devices_per_host or spec.devices_per_node, task.num_devices)
    if bool(shards.is_any(*ON_ONE_HOST).any()) and shards.devices_per_host > per_host:
        raise ValueError(
            f"the placement spreads rows over hosts of {shards.devices_per_host} devices, but {task.name} has "
            f"{per_host} devices per host, so they would not share a link; place for {per_host} devices per host"
        )
    return per_host
