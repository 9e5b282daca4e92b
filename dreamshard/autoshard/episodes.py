"""AutoShard's episodes: place the tables of a task one after another, then be rewarded for the balance of predicted compute.

Many episodes run at once, all of the same number of tables and devices. No hardware is touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.autoshard.cost_network import ComputeCostNetwork
from dreamshard.autoshard.policy_network import DEVICE_INPUTS, AutoShardPolicy
from dreamshard.cost_model import Normaliser
from dreamshard.legality import allowed_devices
from dreamshard.policy.rollout import masked_log_softmax
from dreamshard.tasks import PlacementTask

_LEAST_REFERENCE = 0.01
"""Of `ComputeCostNetwork.unit_ms`: an untrained network predicts next to nothing, which must not blow up relative costs."""


@dataclass(frozen=True)
class Episodes:
    """`B` episodes before their first step; tables in the order in which they are placed.

    Attributes:
        order: index of each table in its task: descending predicted compute alone.
        features: normalised.
        latents: of the cost network.
        table_bytes: of each table.
        reference_ms: sum of the tables' predicted compute alone, over the number of devices. A policy sees costs relative to
            it, so that they mean the same in a small task and in a large one.
        capacity_bytes: of each device.
        allowed: devices that may hold each table.
    """

    order: Int[Tensor, "B T"]
    features: Float[Tensor, "B T F"]
    latents: Float[Tensor, "B T L"]
    table_bytes: Int[Tensor, "B T"]
    reference_ms: Float[Tensor, " B"]
    capacity_bytes: Int[Tensor, "B D"]
    allowed: Bool[Tensor, "B T D"]

    def __getitem__(self, chosen: slice | Int[Tensor, " N"]) -> "Episodes":
        return Episodes(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class Rollout:
    """`B` finished episodes.

    Attributes:
        device: of each table, in its task's own order.
        actions: devices in the order of placing.
        log_prob: of each action under the policy that took it.
        legal: devices open to each step.
        known: inputs of the policy at each step (`policy_network.DEVICE_INPUTS`).
        reward: of each episode: the least over the largest predicted compute of a device, or minus the share by which the
            fullest device exceeds its memory.
    """

    device: Int[Tensor, "B T"]
    actions: Int[Tensor, "B T"]
    log_prob: Float[Tensor, "B T"]
    legal: Bool[Tensor, "B T D"]
    known: Float[Tensor, "B T D I"]
    reward: Float[Tensor, " B"]

    def __getitem__(self, chosen: slice) -> "Rollout":
        return Rollout(*(getattr(self, field.name)[chosen] for field in fields(self)))


def shape_of(task: PlacementTask) -> tuple[int, int]:
    """What the tasks of one batch of episodes have in common: the numbers of tables and of devices."""
    return len(task.tables), task.num_devices


@torch.no_grad()
def episodes_of(tasks: Sequence[PlacementTask], network: ComputeCostNetwork, normaliser: Normaliser) -> Episodes:
    """One episode per task.

    Raises:
        ValueError: the tasks differ in their number of tables or devices.
    """
    shapes = {shape_of(task) for task in tasks}
    if len(shapes) != 1:
        raise ValueError(
            f"tasks of different shape {sorted(shapes)} (tables, devices) cannot share one batch of episodes; roll them out "
            "shape by shape"
        )
    features = torch.stack([normaliser(task.tables) for task in tasks])  # [B, T, F]
    latents = network.encode(features)
    single_ms = network.compute_ms(latents).clamp(min=0)  # [B, T]
    order = torch.argsort(single_ms, dim=1, descending=True, stable=True)
    allowed = torch.stack([allowed_devices(task) for task in tasks])
    features, latents, allowed = (
        values.gather(1, order[:, :, None].expand_as(values)) for values in (features, latents, allowed)
    )
    return Episodes(
        order,
        features,
        latents,
        torch.stack([task.table_bytes for task in tasks]).gather(1, order),
        (single_ms.sum(dim=1) / tasks[0].num_devices).clamp(min=_LEAST_REFERENCE * float(network.unit_ms)),
        torch.stack([task.capacity_bytes for task in tasks]),
        allowed,
    )


@torch.no_grad()
def rollout(
    policy: AutoShardPolicy, network: ComputeCostNetwork, episodes: Episodes, generator: torch.Generator | None
) -> Rollout:
    """Place every table; sampled with `generator`, greedy without."""
    (batch, num_tables), num_devices = episodes.order.shape, episodes.capacity_bytes.shape[1]
    encoded = policy.encode(episodes.features)
    states = policy.states(encoded)
    sums = encoded.new_zeros(batch, num_devices, encoded.shape[-1])
    loads = episodes.latents.new_zeros(batch, num_devices, episodes.latents.shape[-1])
    compute_ms = encoded.new_zeros(batch, num_devices)
    used_bytes = torch.zeros_like(episodes.capacity_bytes)
    known = encoded.new_zeros(batch, num_tables, num_devices, DEVICE_INPUTS)
    legal = torch.empty(batch, num_tables, num_devices, dtype=torch.bool)
    actions = torch.empty(batch, num_tables, dtype=torch.int64)
    log_prob = encoded.new_empty(batch, num_tables)
    row = torch.arange(batch)
    for t in range(num_tables):
        known[:, t, :, 0] = compute_ms / episodes.reference_ms[:, None]
        known[:, t, :, 1] = used_bytes / episodes.capacity_bytes.clamp(min=1)
        legal[:, t] = _legal(used_bytes, episodes, t)
        log_p = masked_log_softmax(policy.logits(states[:, t], sums, known[:, t]), legal[:, t])  # [B, D]
        action = _choice(log_p, generator)
        sums[row, action] += encoded[:, t]
        loads[row, action] += episodes.latents[:, t]
        compute_ms[row, action] = network.compute_ms(loads[row, action]).clamp(min=0)
        used_bytes[row, action] += episodes.table_bytes[:, t]
        actions[:, t] = action
        log_prob[:, t] = log_p[row, action]
    device = torch.empty_like(actions).scatter_(1, episodes.order, actions)
    return Rollout(device, actions, log_prob, legal, known, _reward(compute_ms, used_bytes, episodes.capacity_bytes))


def _choice(log_p: Float[Tensor, "B D"], generator: torch.Generator | None) -> Int[Tensor, " B"]:
    if generator is None:
        return log_p.argmax(dim=-1)
    return torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]


def _reward(
    compute_ms: Float[Tensor, "B D"], used_bytes: Int[Tensor, "B D"], capacity_bytes: Int[Tensor, "B D"]
) -> Float[Tensor, " B"]:
    balance = compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-9)
    excess = ((used_bytes - capacity_bytes) / capacity_bytes.amax(dim=1, keepdim=True).clamp(min=1)).amax(dim=1)
    return torch.where(excess > 0, -excess, balance)


def _legal(used_bytes: Int[Tensor, "B D"], episodes: Episodes, t: int) -> Bool[Tensor, "B D"]:
    """Devices that may hold table `t` and have room; where none has, those that may with the most room."""
    room = episodes.capacity_bytes - used_bytes - episodes.table_bytes[:, t, None]
    allowed = episodes.allowed[:, t]
    legal = allowed & (room >= 0)
    stuck = ~legal.any(dim=1, keepdim=True)
    if not stuck.any():
        return legal
    most = room.masked_fill(~allowed, torch.iinfo(room.dtype).min)
    return legal | (stuck & (most == most.amax(dim=1, keepdim=True)))
