"""How long collectives take over the links of an accelerator's node, and an all-to-all between nodes, too."""

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.link_curves import MEASURED_LINKS, link_curve
from dreamshard.testbeds.accelerators.nvidia_specs import DATASHEET_LINKS
from dreamshard.testbeds.accelerators.public_measurements import Operation

VECTOR_BYTES = 4  # per element of pooled vectors and gradients
LOOKUP_BYTES = 8  # per index and per length: int64
NETWORK_SHARE = 0.9  # of the adapters' bandwidth that an all-to-all reaches; an assumption, for headers and uneven use
PEER_S = 2e-6  # per device of another node; from 64 H800 on 8 nodes, 296-338 us for 8 MiB each (nccl issue 1531)
LARGE_BYTES = 2**29  # at which links reach their full bandwidth: the largest size that was measured


def vector_bytes(sum_dims: Float[Tensor, "*B"], batch_size: int) -> Float[Tensor, "*B"]:
    """Bytes of the pooled vectors of the whole batch on each device: what it sends in all, its own share included."""
    return sum_dims * (VECTOR_BYTES * batch_size)


def all_to_all_s(
    sent_bytes: Float[Tensor, "*B D"], spec: AcceleratorSpec, devices_per_host: int | None = None
) -> Float[Tensor, "*B D"]:
    """Seconds of one all-to-all: every device waits for the largest sender.

    A device never receives more than the largest sender sends, so only sending counts. Within a node the spec's curve
    holds. What leaves the node shares its adapters evenly (one or more for each device, or one for several), at
    `NETWORK_SHARE` of their bandwidth, and each device of another node costs `PEER_S`; all hosts are full and reach each
    other at full speed. Both happen at once, so the slower one counts.

    Args:
        sent_bytes: what each device sends in all; each device, itself too, gets a `D`-th of it.
        spec: of the links.
        devices_per_host: devices that reach each other by the node's own link; None for as many as the node has.
    """
    num_devices = sent_bytes.shape[-1]
    if num_devices == 1:
        return torch.zeros_like(sent_bytes)
    largest = sent_bytes.amax(dim=-1, keepdim=True)  # [*B, 1]
    near = min(num_devices, devices_per_host or spec.devices_per_node)
    far = num_devices - near
    seconds = within_node_s(largest * (near / num_devices), spec, near)
    if far:
        latency_s = spec.network_latency_s + far * PEER_S
        bandwidth = NETWORK_SHARE * spec.network_bytes_per_s
        seconds = torch.maximum(seconds, largest * (far / num_devices) / bandwidth + latency_s)
    return seconds.expand_as(sent_bytes).clone()


def index_all_to_all_s(
    lookups: Float[Tensor, "*B D"],
    num_tables: Float[Tensor, "*B D"],
    batch_size: int,
    spec: AcceleratorSpec,
    devices_per_host: int | None = None,
) -> Float[Tensor, "*B D"]:
    """Seconds of the all-to-all of the indices, with which each device gets the lookups of its tables.

    It is none of the paper's four phases and not part of `phase_costs`: TorchRec's pipeline hides it behind the
    computation of the batch before. Each device receives one int64 per lookup of its tables and one per sample and table
    (the lengths); every device waits for the one that receives most.

    Args:
        lookups: of the whole batch in the tables of each device.
        num_tables: of each device.
        batch_size: samples of the whole batch.
        spec: of the links.
        devices_per_host: as for `all_to_all_s`.
    """
    return all_to_all_s(LOOKUP_BYTES * (lookups + batch_size * num_tables), spec, devices_per_host)


def within_node_s(
    num_bytes: Float[Tensor, "*B"], spec: AcceleratorSpec, near: int, operation: Operation = "all_to_all"
) -> Float[Tensor, "*B"]:
    """Seconds of one collective among `near` devices of a node; bytes as `collective_times` counts them."""
    if near == 1:
        return torch.zeros_like(num_bytes)
    if spec.link_curve in DATASHEET_LINKS:
        faster = spec.link_bytes_per_s / DATASHEET_LINKS[spec.link_curve]
        return link_curve(spec.link_curve, near, operation).seconds(num_bytes / faster)
    share = _datasheet_share(spec.link_curve, near, operation) if spec.link_curve in MEASURED_LINKS else 1.0
    return num_bytes * sent_share(near, operation) / (share * spec.link_bytes_per_s) + spec.link_latency_s


def sent_share(num_devices: int, operation: Operation) -> float:
    """Of the bytes of a collective, what NCCL moves out of each device; twice in an all-reduce, of sums and of results."""
    return (2 if operation == "all_reduce" else 1) * (num_devices - 1) / num_devices


@cache
def _datasheet_share(kind: str, num_gpus: int, operation: Operation) -> float:
    """Share of its datasheet's bandwidth that a link of this kind reaches: the geometric mean of the GPUs measured."""
    shares = []
    for gpu in MEASURED_LINKS[kind]:
        seconds = float(link_curve(gpu, num_gpus, operation).seconds(torch.tensor(float(LARGE_BYTES))))
        shares.append(LARGE_BYTES * sent_share(num_gpus, operation) / seconds / DATASHEET_LINKS[gpu])
    return math.prod(shares) ** (1 / len(shares))
