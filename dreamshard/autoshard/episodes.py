"""AutoShard's episodes: place the tables of a task one after another, then be rewarded for the balance of predicted compute.

Many episodes run at once, all of the same number of tables and devices. No hardware is touched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.autoshard.networks import DEVICE_INPUTS, AutoShardPolicy, ComputeCostNetwork
from dreamshard.cost_model import Normaliser
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.policy.mdp import legal_devices, masked_log_softmax
from dreamshard.search.packing import PlacementLimits, packed
from dreamshard.shards import allowed_devices
from dreamshard.tasks import PlacementTask

_LEAST_REFERENCE = 0.01
"""Of `ComputeCostNetwork.unit_ms`: an untrained network predicts almost 0, which must not blow up relative costs."""


@dataclass(frozen=True)
class Episodes:
    """`B` episodes before their first step; tables in the order of placing.

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

    @classmethod
    @torch.no_grad()
    def of(cls, tasks: Sequence[PlacementTask], network: ComputeCostNetwork, normaliser: Normaliser) -> "Episodes":
        """One episode per task; all tasks have the same numbers of tables and devices."""
        features = torch.stack([normaliser(task.tables) for task in tasks])
        latents = network.encode(features)
        alone_ms = network.compute_ms(latents)  # [B, T]
        order = torch.argsort(alone_ms, dim=1, descending=True, stable=True)
        rows = torch.arange(len(tasks))[:, None]
        return cls(
            order,
            features[rows, order],
            latents[rows, order],
            torch.stack([task.table_bytes for task in tasks])[rows, order],
            (alone_ms.sum(dim=1) / tasks[0].num_devices).clamp(min=_LEAST_REFERENCE * float(network.unit_ms)),
            torch.stack([task.capacity_bytes for task in tasks]),
            torch.stack([allowed_devices(task) for task in tasks])[rows, order],
        )

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
        known: inputs of the policy at each step (`networks.DEVICE_INPUTS`).
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
    """Numbers of tables and of devices, which the tasks of one batch of episodes share."""
    return len(task.tables), task.num_devices


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
        legal[:, t] = legal_devices(
            used_bytes, episodes.table_bytes[:, t], episodes.capacity_bytes, episodes.allowed[:, t]
        )
        log_p = masked_log_softmax(policy.logits(states[:, t], sums, known[:, t]), legal[:, t])  # [B, D]
        drawn = None if generator is None else torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
        action = log_p.argmax(dim=-1) if drawn is None else drawn
        sums[row, action] += encoded[:, t]
        loads[row, action] += episodes.latents[:, t]
        compute_ms[row, action] = network.compute_ms(loads[row, action])
        used_bytes[row, action] += episodes.table_bytes[:, t]
        actions[:, t] = action
        log_prob[:, t] = log_p[row, action]
    device = torch.empty_like(actions).scatter_(1, episodes.order, actions)
    return Rollout(device, actions, log_prob, legal, known, _reward(compute_ms, used_bytes, episodes.capacity_bytes))


def _reward(
    compute_ms: Float[Tensor, "B D"], used_bytes: Int[Tensor, "B D"], capacity_bytes: Int[Tensor, "B D"]
) -> Float[Tensor, " B"]:
    balance = compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-9)
    excess = ((used_bytes - capacity_bytes) / capacity_bytes.amax(dim=1, keepdim=True).clamp(min=1)).amax(dim=1)
    return torch.where(excess > 0, -excess, balance)


def random_sets(task: PlacementTask, name: str, generator: torch.Generator) -> tuple[PlacementTask, Placement]:
    """Devices that hold random sets of the task's tables, as a task of those tables alone, and a placement of it.

    Every device is a measured multi-table cost. Sizes of sets are log-uniform between a single table and all tables that
    are left. A set ends before the first table that no longer fits its device.

    Args:
        task: whose tables are drawn.
        name: of the new task.
        generator: draws.
    """
    order = torch.randperm(len(task.tables), generator=generator).tolist()
    table_bytes = task.table_bytes.tolist()
    chosen: list[int] = []
    device: list[int] = []
    sizes = torch.rand(task.num_devices, generator=generator).tolist()
    for d, (share, capacity) in enumerate(zip(sizes, task.capacity_bytes.tolist(), strict=True)):
        left = len(order) - len(chosen)
        size, used = math.floor((left + 1) ** share) if left else 0, 0
        for t in order[len(chosen) : len(chosen) + size]:
            used += table_bytes[t]
            if used > capacity:
                break
            chosen.append(t)
            device.append(d)
    part = replace(task, tables=task.tables.select(chosen), name=name)
    return part, Placement.whole(device, task.num_devices)


@dataclass(frozen=True)
class AutoShardPlacer(OrderedPlacer):
    """A trained policy and cost network; places by the policy's greedy choices alone."""

    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    normaliser: Normaliser
    name: str = "autoshard"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The policy's placement of whole tables.

        If the policy runs out of room, tables are packed (`baselines.packed`). Constraints that it does not know (tables to
        be together or apart) are met by moving as few tables as are in the way.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        taken = rollout(self.policy, self.cost_network, Episodes.of([task], self.cost_network, self.normaliser), None)
        device: Tensor | None = taken.device[0]
        if not task.constraints.places_freely:
            alone_ms = self.cost_network.compute_ms(self.cost_network.encode(self.normaliser(task.tables)))
            device = PlacementLimits.of(task).repaired(taken.device[0], alone_ms.double().numpy())
        elif float(taken.reward[0]) < 0:
            device = None
        return Placement.whole(packed(task) if device is None else device, task.num_devices)
