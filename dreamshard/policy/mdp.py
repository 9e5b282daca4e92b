"""The estimated MDP: place one table after another; what it costs is what the cost network predicts.

State per device: the sum of its tables' latents, its predicted costs, and the memory used. Sums are incremental: a step
adds one latent to one device and evaluates that device. Nothing here touches hardware. All functions take `B` episodes
of the same number of tables and devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.fast_evaluation import Loads, ShardCosts, refresh
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.networks import CostNetwork
from dreamshard.tasks import PlacementTask

_OWN_SHARE = np.float32(0.1)  # of a device's own cost, beside the overall cost, in deciding where a table goes


@dataclass(frozen=True)
class Episodes:
    """What `B` episodes start from; tables in the order in which they are placed.

    Attributes:
        order: `[B, T]` index of each table in its task: descending predicted single cost.
        features: `[B, T, F]` normalised.
        latents: `[B, T, L]` of the cost network.
        table_bytes: `[B, T]`.
        single_ms: `[B, T]` predicted cost of each table alone on one device.
        reference_ms: `[B]` predicted cost of all tables one by one, shared evenly by the devices: the scale in which a
            policy sees costs, so that it means the same in a small task and in a large one.
        num_devices: `D`.
        capacity_bytes: per device.
    """

    order: Int[Tensor, "B T"]
    features: Float[Tensor, "B T F"]
    latents: Float[Tensor, "B T L"]
    table_bytes: Int[Tensor, "B T"]
    single_ms: Float[Tensor, "B T"]
    reference_ms: Float[Tensor, " B"]
    num_devices: int
    capacity_bytes: int

    def repeat(self, times: int) -> "Episodes":
        """Each episode `times` times over, side by side."""
        return Episodes(
            self.order.repeat_interleave(times, dim=0),
            self.features.repeat_interleave(times, dim=0),
            self.latents.repeat_interleave(times, dim=0),
            self.table_bytes.repeat_interleave(times, dim=0),
            self.single_ms.repeat_interleave(times, dim=0),
            self.reference_ms.repeat_interleave(times, dim=0),
            self.num_devices,
            self.capacity_bytes,
        )


@dataclass
class State:
    """Where episodes stand; `step` changes it in place, since a copy per step would cost more than the step.

    Attributes:
        loads: `[B, D]` devices.
        used_bytes: `[B, D]`.
        slowest_ms: `[B, 1]` compute of the slowest device.
        widest_ms: `[B, 1]` communication of the widest one.
        episode: `[B]` 0..B-1.
    """

    loads: Loads
    used_bytes: NDArray[np.int64]
    slowest_ms: NDArray[np.float32]
    widest_ms: NDArray[np.float32]
    episode: NDArray[np.int64]


@torch.no_grad()
def episodes_of(tasks: Sequence[PlacementTask], network: CostNetwork, normaliser: Normaliser) -> Episodes:
    """One episode per task.

    Raises:
        ValueError: the tasks differ in their number of tables, of devices, or in memory.
    """
    shapes = {(len(task.tables), task.num_devices, task.memory_bytes) for task in tasks}
    if len(shapes) != 1:
        raise ValueError(
            f"tasks of different shape {sorted(shapes)} (tables, devices, bytes) cannot share one batch of episodes; "
            "roll them out shape by shape"
        )
    normalised = torch.stack([normaliser(task.tables) for task in tasks])  # [B, T, F]
    latents = network.encode(normalised)  # [B, T, L]
    single_ms = network.phases_ms(latents[:, :, None, :]).sum((-1, -2))  # [B, T]: each table alone on one device
    order = torch.argsort(single_ms, dim=1, descending=True, stable=True)  # [B, T]
    table_bytes = torch.stack([task.table_bytes for task in tasks])
    first = tasks[0]
    return Episodes(
        order,
        normalised.gather(1, order[:, :, None].expand_as(normalised)),
        latents.gather(1, order[:, :, None].expand_as(latents)),
        table_bytes.gather(1, order),
        single_ms.gather(1, order),
        (single_ms.sum(dim=1) / first.num_devices).clamp(min=1e-6),
        first.num_devices,
        first.memory_bytes,
    )


def start(costs: ShardCosts, batch: int, num_devices: int) -> State:
    """All devices empty."""
    loads = costs.empty(batch, num_devices)
    return State(
        loads,
        np.zeros((batch, num_devices), np.int64),
        loads.compute_ms.max(axis=1, keepdims=True),
        loads.comm_ms.max(axis=1, keepdims=True),
        np.arange(batch),
    )


def legal_devices(
    used_bytes: NDArray[np.int64], table_bytes: NDArray[np.int64], capacity_bytes: int
) -> NDArray[np.bool_]:
    """`[B, D]` devices that have room for a table of `[B]` bytes: the one mask of sampling, loss and greedy choice.

    Where no device has room, the one with the most is let through, so that a softmax over legal devices stays defined;
    such an episode ends over capacity and `Rollout.feasible` says so.
    """
    fits = used_bytes <= (capacity_bytes - table_bytes)[:, None]
    if fits.all():
        return fits
    stuck = ~fits.any(axis=1, keepdims=True)  # [B, 1]
    result: NDArray[np.bool_] = fits | (stuck & (used_bytes == used_bytes.min(axis=1, keepdims=True)))
    return result


def step(
    costs: ShardCosts,
    state: State,
    latent: NDArray[np.float32],
    table_bytes: NDArray[np.int64],
    device: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Put one table per episode, of `latent` `[B, L]` and `table_bytes` `[B]`, on `device` `[B]`.

    Returns:
        Forward and backward compute of these devices, `[B]` each.
    """
    changed = (state.episode, device)
    state.loads.sums[changed] += latent
    state.used_bytes[changed] += table_bytes
    forward, backward = refresh(costs, state.loads, changed)
    np.maximum(state.slowest_ms, state.loads.compute_ms[changed][:, None], out=state.slowest_ms)
    np.maximum(state.widest_ms, state.loads.comm_ms[changed][:, None], out=state.widest_ms)
    return forward, backward


def after_ms(costs: ShardCosts, state: State, latent: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[B, D]` how dear it is to put the table of `latent` `[B, L]` on each device.

    The overall cost after it, plus a tenth of what the device itself would then cost if it were the widest. The first
    term alone leaves devices equal that neither it nor the all-to-all makes critical; the second alone lets compute and
    dims end on different devices, whose sum is what everyone waits for.
    """
    compute, comm = costs.after(state.loads, latent)  # [B, D] each
    dear: NDArray[np.float32] = np.maximum(compute, state.slowest_ms) + np.maximum(comm, state.widest_ms)
    compute += comm
    compute *= _OWN_SHARE
    dear += compute
    return dear
