"""The estimated MDP: place one table after another; what it costs is what the cost network predicts.

State per device: the sum of its tables' latents and the memory used. Sums are incremental: a step adds one latent to
one device. Nothing here touches hardware. All functions take `B` episodes of the same number of tables and devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.cost_network import CostNetwork
from dreamshard.features import Normaliser
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class Episodes:
    """What `B` episodes start from; tables in the order in which they are placed.

    Attributes:
        order: `[B, T]` index of each table in its task: descending predicted single cost.
        features: `[B, T, F]` normalised.
        latents: `[B, T, L]` of the cost network.
        table_bytes: `[B, T]`.
        reference_ms: `[B]` predicted cost of all tables one by one, shared evenly by the devices: the scale in which a
            policy sees costs, so that it means the same in a small task and in a large one.
        num_devices: `D`.
        capacity_bytes: per device.
    """

    order: Int[Tensor, "B T"]
    features: Float[Tensor, "B T F"]
    latents: Float[Tensor, "B T L"]
    table_bytes: Int[Tensor, "B T"]
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
            self.reference_ms.repeat_interleave(times, dim=0),
            self.num_devices,
            self.capacity_bytes,
        )


@dataclass(frozen=True)
class State:
    """Where episodes stand.

    Attributes:
        sums: `[B, D, L]` latents summed over each device's tables; zero for an empty device.
        used_bytes: `[B, D]`.
    """

    sums: Float[Tensor, "B D L"]
    used_bytes: Int[Tensor, "B D"]


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
        (single_ms.sum(dim=1) / first.num_devices).clamp(min=1e-6),
        first.num_devices,
        first.memory_bytes,
    )


def start(episodes: Episodes) -> State:
    """All devices empty."""
    batch, latent = episodes.latents.shape[0], episodes.latents.shape[2]
    return State(
        episodes.latents.new_zeros(batch, episodes.num_devices, latent),
        episodes.table_bytes.new_zeros(batch, episodes.num_devices),
    )


def legal_devices(episodes: Episodes, state: State, t: int) -> Bool[Tensor, "B D"]:
    """Devices that have room for table `t`: the one mask of sampling, loss and greedy choice.

    Where no device has room, the one with the most is let through, so that a softmax over legal devices stays defined;
    such an episode ends over capacity and `Rollout.feasible` says so.
    """
    room = episodes.capacity_bytes - state.used_bytes  # [B, D]
    fits = room >= episodes.table_bytes[:, t, None]
    stuck = ~fits.any(dim=1, keepdim=True)  # [B, 1]
    return fits | (stuck & (room == room.max(dim=1, keepdim=True).values))


def step(episodes: Episodes, state: State, t: int, device: Int[Tensor, " B"]) -> State:
    """Put table `t` on `device`."""
    batch = torch.arange(len(device))
    sums, used = state.sums.clone(), state.used_bytes.clone()
    sums[batch, device] += episodes.latents[:, t]
    used[batch, device] += episodes.table_bytes[:, t]
    return State(sums, used)
