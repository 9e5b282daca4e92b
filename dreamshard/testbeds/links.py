"""How long an all-to-all takes over the links of an accelerator's node and between nodes."""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.testbeds.specs import AcceleratorSpec

VECTOR_BYTES = 4  # per element of pooled vectors and gradients


def vector_bytes(sum_dims: Float[Tensor, "*B D"], batch_size: int) -> Float[Tensor, "*B D"]:
    """Bytes of the pooled vectors of the whole batch on each device: what it sends in all, its own share included."""
    return sum_dims * (VECTOR_BYTES * batch_size)


def all_to_all_s(
    sent_bytes: Float[Tensor, "*B D"], spec: AcceleratorSpec, devices_per_host: int | None = None
) -> Float[Tensor, "*B D"]:
    """Seconds of one all-to-all: every device waits for the largest sender.

    A device never receives more than the largest sender sends, so only sending counts.

    Args:
        sent_bytes: what each device sends in all; each device, itself too, gets a `D`-th of it.
        spec: of the links.
        devices_per_host: devices that reach each other by the node's own link; None for as many as the node has.
    """
    num_devices = sent_bytes.shape[-1]
    if num_devices == 1:
        return torch.zeros_like(sent_bytes)
    per_peer_bytes = sent_bytes.amax(dim=-1, keepdim=True) / num_devices  # [*B, 1]
    near = min(num_devices, devices_per_host or spec.devices_per_node) - 1
    far = num_devices - 1 - near
    seconds = near * per_peer_bytes / spec.link_bytes_per_s + spec.link_latency_s
    if far:
        network = far * per_peer_bytes / spec.network_bytes_per_s + spec.network_latency_s
        seconds = torch.maximum(seconds, network)
    return seconds.expand_as(sent_bytes).clone()
