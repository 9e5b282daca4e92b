"""How long the collectives of every way to shard take, beside the all-to-all of table- and column-wise shards.

Row-wise tables need a reduce-scatter of partial sums over all devices, and an all-gather of gradients on the way back.
Tables on one host need a reduce-scatter within it, and an all-to-all between devices of equal number on all hosts; on the
way back the same in reverse. Data-parallel tables need an all-reduce of their gradients in the backward pass.

Within a host each follows its own curve through public measurements, as the all-to-all does. Over several hosts each ring of
NCCL enters and leaves a host once, so that the adapters of a host share what one device sends. No public time between hosts
checks this.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.shards import Collectives, Shards
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.links import (
    NETWORK_SHARE,
    PEER_S,
    all_to_all_s,
    index_all_to_all_s,
    sent_share,
    vector_bytes,
    within_node_s,
)
from dreamshard.testbeds.accelerators.public_measurements import Operation


@dataclass(frozen=True, kw_only=True)
class CollectiveSeconds:
    """Seconds on each device, one collective after another.

    Attributes:
        forward_s: `[D]` until a device has its samples' pooled vectors.
        backward_s: `[D]` until it has the gradients of its shards, and the summed ones of its data-parallel copies.
    """

    forward_s: Float[Tensor, " D"]
    backward_s: Float[Tensor, " D"]


def other_collectives_s(
    collectives: Collectives, batch_size: int, spec: AcceleratorSpec, devices_per_host: int | None = None
) -> CollectiveSeconds:
    """Seconds of everything but the all-to-all of table- and column-wise shards.

    Args:
        collectives: what they carry.
        batch_size: samples of the whole batch.
        spec: of the links.
        devices_per_host: devices that reach each other by the node's own link; None for as many as the node has.
    """
    num_devices = len(collectives.all_to_all_dims)
    per_host = devices_per_host or spec.devices_per_node
    forward_s = torch.zeros(num_devices, dtype=torch.float64)
    backward_s = torch.zeros_like(forward_s)
    if collectives.row_wise_dims:
        rows_bytes = vector_bytes(torch.tensor(float(collectives.row_wise_dims), dtype=torch.float64), batch_size)
        forward_s += ring_s(rows_bytes, num_devices, spec, per_host, "reduce_scatter")
        backward_s += ring_s(rows_bytes, num_devices, spec, per_host, "all_gather")
    if bool((collectives.host_dims > 0).any()):
        group, dims = collectives.devices_per_host, collectives.host_dims.double()
        host_s = host_exchange_s(dims, batch_size, group, spec, per_host, "reduce_scatter")
        back_s = host_exchange_s(dims, batch_size, group, spec, per_host, "all_gather")
        forward_s += host_s.repeat_interleave(collectives.devices_per_host)[:num_devices]
        backward_s += back_s.repeat_interleave(collectives.devices_per_host)[:num_devices]
    if collectives.all_reduce_bytes:
        gradient_bytes = torch.tensor(float(collectives.all_reduce_bytes), dtype=torch.float64)
        backward_s += ring_s(gradient_bytes, num_devices, spec, per_host, "all_reduce")
    return CollectiveSeconds(forward_s=forward_s, backward_s=backward_s)


def collectives_s(
    collectives: Collectives, batch_size: int, spec: AcceleratorSpec, devices_per_host: int
) -> CollectiveSeconds:
    """Seconds of all collectives, the all-to-all included; arguments as those of `other_collectives_s`."""
    other = other_collectives_s(collectives, batch_size, spec, devices_per_host)
    dims = collectives.all_to_all_dims.double()
    if not bool((dims > 0).any()):
        return other
    exchange_s = all_to_all_s(vector_bytes(dims, batch_size), spec, devices_per_host)
    return CollectiveSeconds(forward_s=exchange_s + other.forward_s, backward_s=exchange_s + other.backward_s)


def ring_s(
    num_bytes: Float[Tensor, "*B"], num_devices: int, spec: AcceleratorSpec, devices_per_host: int, operation: Operation
) -> Float[Tensor, "*B"]:
    """Seconds of a reduce-scatter, an all-gather or an all-reduce over all devices; bytes as `collective_times` counts them.

    Over several hosts the rings' share within a host and their share between hosts happen at once, so the slower one
    counts; each host more costs `PEER_S`.
    """
    near = min(num_devices, devices_per_host)
    seconds = within_node_s(num_bytes, spec, near, operation)
    if num_devices > near:
        hosts = -(-num_devices // near)
        sent_bytes = num_bytes * sent_share(num_devices, operation) / near
        latency_s = spec.network_latency_s + (hosts - 1) * PEER_S
        seconds = torch.maximum(seconds, sent_bytes / (NETWORK_SHARE * spec.network_bytes_per_s) + latency_s)
    return seconds


def host_exchange_s(
    host_dims: Float[Tensor, "*B H"],
    batch_size: int,
    group: int,
    spec: AcceleratorSpec,
    devices_per_host: int,
    operation: Operation,
) -> Float[Tensor, "*B H"]:
    """Seconds on the devices of each host until pooled vectors of tables on one host are where their samples are, or back.

    Args:
        host_dims: columns of the tables on each host.
        batch_size: samples of the whole batch.
        group: devices that share a table's rows.
        spec: of the links.
        devices_per_host: devices that reach each other by the node's own link, at least `group`.
        operation: within a host: a reduce-scatter, on the way back an all-gather.
    """
    within_s = within_node_s(vector_bytes(host_dims, batch_size), spec, group, operation)
    within_s = torch.where(host_dims > 0, within_s, 0.0)
    hosts = host_dims.shape[-1]
    if hosts == 1:
        return within_s
    sent_bytes = vector_bytes(host_dims, batch_size) / group
    across_s = all_to_all_s(sent_bytes, spec, max(1, devices_per_host // group))
    return (within_s + across_s).amax(dim=-1, keepdim=True).expand_as(host_dims).clone()


def index_exchange_s(
    shards: Shards, batch_size: int, spec: AcceleratorSpec, devices_per_host: int | None = None
) -> Float[Tensor, " D"]:
    """Seconds of the exchange of indices: every shard but data-parallel copies gets the lookups of its rows.

    Args:
        shards: of a placement.
        batch_size: samples of the whole batch.
        spec: of the links.
        devices_per_host: as for `other_collectives_s`.
    """
    exchanged = (~shards.is_any("data_parallel")).double()
    lookups = torch.zeros(shards.num_devices, dtype=torch.float64)
    lookups.index_add_(0, shards.device, exchanged * shards.tables.pooling_factor.double() * batch_size)
    counts = torch.zeros_like(lookups).index_add_(0, shards.device, exchanged)
    if not bool(exchanged.any()):
        return lookups
    return index_all_to_all_s(lookups, counts, batch_size, spec, devices_per_host)
