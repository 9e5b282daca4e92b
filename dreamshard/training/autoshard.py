"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022, arXiv 2208.06399.

It balances compute, and knows nothing of all-to-alls: its cost network, its policy, episodes rewarded for the balance of
predicted compute, updates, and placer. `docs/as-published.md` lists differences from the paper and the authors' program.

The actor-critic learns with V-trace (Espeholt et al. 2018, arXiv 1802.01561), since the policy that acted is older than
the one that learns.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import CostData, CostNetwork, Normaliser, TableNetwork, gradient_step, mlp
from dreamshard.cost_model.compiled import DeviceLaw
from dreamshard.cost_model.cost_network import COMPUTE, LATENT, heads_law
from dreamshard.policy.mdp import Episode, UpdateFigures, legal_devices, masked
from dreamshard.search.packing import packed
from dreamshard.tables import Placement
from dreamshard.tasks import OrderedPlacer, PlacementTask, violation

DEVICE_INPUTS = 2
"""Of a device, besides its tables: its predicted compute and its memory in use."""
_PER_BEHAVIOUR = 2  # updates on rollouts of one policy
_VALUE_WEIGHT = 0.5  # of the loss of the value estimate
_MAX_GRADIENT_NORM = 40.0


class ComputeCostNetwork(CostNetwork):
    """Compute of a device: table encoder, sum over its tables, 32-64-1.

    Attributes:
        unit_ms: unit of the last layer: mean cost of the devices of the first fit, so that losses mean the same on slow
            and on fast hardware. The authors' network predicts milliseconds.
    """

    max_gradient_norm = _MAX_GRADIENT_NORM
    unit_ms: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.head = mlp(LATENT, 64, 1)
        self.register_buffer("unit_ms", torch.ones(()))

    def compute_ms(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
        """Forward and backward compute of devices; 0 without tables, never negative."""
        held = sums[..., -1] > 0.5
        return self.head(sums[..., :-1]).squeeze(-1).clamp(min=0) * held * self.unit_ms

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """All compute as forward compute, since AutoShard does not tell the passes apart, and no communication."""
        return nn.functional.pad(self.compute_ms(sums)[..., None], (0, 3))

    @torch.no_grad()
    def law(self, num_devices: int) -> DeviceLaw:
        """Compute of a device with tables."""
        return heads_law([self.head], torch.zeros(LATENT), float(self.unit_ms))

    def fit(self, data: CostData, *steps: Any) -> float:
        """Set `unit_ms` before the first fit; see `CostNetwork.fit`."""
        if self.measured_on is None:
            self.unit_ms = _measured_ms(data).mean().clamp(min=1e-9)
        return super().fit(data, *steps)

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Mean squared error in `unit_ms`², of devices with tables drawn with replacement."""
        held, measured_ms = data.assignment[data.holding], _measured_ms(data)
        drawn = torch.randint(len(held), (batch,), generator=generator)
        sums = held[drawn] @ self.encode(data.features)
        error: Tensor = self.head(sums[..., :-1]).squeeze(-1) - measured_ms[drawn] / self.unit_ms
        return error.square().mean()

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Compute of devices with tables."""
        return self.compute_ms(data.sums(self.encode))[data.holding], _measured_ms(data)


def _measured_ms(data: CostData) -> Float[Tensor, " N"]:
    """Compute of each device with tables."""
    return data.phases_ms[data.holding][:, COMPUTE].sum(dim=-1)


class AutoShardPolicy(nn.Module):
    """Chooses a device for one table after another, and estimates the reward to come.

    A step's state is the table being placed and the share of tables placed so far, through two LSTM layers. A device is the
    sum of its tables' latents and `DEVICE_INPUTS`. State, device and their product go through 192-128-128-64-1 to the
    device's logit, so any number of devices can be scored.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 2 * LATENT
        self.table = TableNetwork()
        self.progress = nn.Sequential(nn.Linear(1, LATENT), nn.ReLU())
        self.device = nn.Sequential(nn.Linear(DEVICE_INPUTS, LATENT), nn.ReLU())
        self.core = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.first = nn.Linear(3 * width, 128)
        self.score = nn.Sequential(nn.ReLU(), *mlp(128, 128, 64, 1))
        self.value = mlp(width, 64, 1)

    def encode(self, features: Float[Tensor, "T F"]) -> Float[Tensor, "T L"]:
        """Latent of each table."""
        return self.table(features.clamp(-10, 10))

    def states(self, encoded: Float[Tensor, "T L"]) -> Float[Tensor, "T H"]:
        """The state of each step; it depends on no choice of device."""
        placed = torch.arange(len(encoded))[:, None] / len(encoded)  # [T, 1]
        return self.core(torch.cat([encoded, self.progress(placed)], dim=-1))[0]

    def logits(
        self, states: Float[Tensor, "*B H"], sums: Float[Tensor, "*C D L"], known: Float[Tensor, "*C D I"]
    ) -> Float[Tensor, "*C D"]:
        """Score of each device, by the latents summed over its tables, and its `DEVICE_INPUTS`."""
        devices, state = torch.cat([sums, self.device(known)], dim=-1), states[..., None, :]  # [*C, D, H]
        of_state, of_device, of_both = self.first.weight.split(devices.shape[-1], dim=1)
        hidden = devices @ of_device.T + (state * devices) @ of_both.T + (state @ of_state.T + self.first.bias)
        return self.score(hidden).squeeze(-1)


class AutoShardRollout(NamedTuple):
    """`B` finished episodes of one task.

    Attributes:
        device: of each table, in the task's own order.
        actions: devices in the order of placing.
        log_prob: of each action under the policy that took it.
        legal: devices open to each step.
        known: inputs of the policy at each step (`DEVICE_INPUTS`).
        reward: of each episode: the least over the largest predicted compute of a device, or minus the share by which the
            fullest device exceeds its memory.
    """

    device: Int[Tensor, "B T"]
    actions: Int[Tensor, "B T"]
    log_prob: Float[Tensor, "B T"]
    legal: Bool[Tensor, "B T D"]
    known: Float[Tensor, "B T D I"]
    reward: Float[Tensor, " B"]


@torch.no_grad()
def rollout(
    policy: AutoShardPolicy, episode: Episode, count: int = 1, generator: torch.Generator | None = None
) -> AutoShardRollout:
    """Place every table `count` times; sampled with `generator`, greedy without."""
    num_devices, network = len(episode.capacity_bytes), episode.network
    encoded, capacity = policy.encode(episode.features), episode.capacity_bytes
    states = policy.states(encoded)
    # The policy sees costs relative to an even share, so that they mean the same in a small task and in a large one
    even_ms = network.phases_ms(episode.latents)[:, 0].sum().clamp(min=1e-9) / num_devices
    sums, loads = (torch.zeros(count, num_devices, columns.shape[1]) for columns in (encoded, episode.latents))
    compute_ms = torch.zeros(count, num_devices)
    used_bytes = torch.zeros(count, num_devices, dtype=torch.int64)
    steps, row = [], torch.arange(count)
    for t, size in enumerate(episode.table_bytes.tolist()):
        seen = [(compute_ms / even_ms).clamp(max=num_devices), used_bytes / capacity.clamp(min=1)]
        fits = [legal_devices(used, size, capacity.numpy(), episode.allowed[t].numpy()) for used in used_bytes.numpy()]
        known, legal = torch.stack(seen, dim=-1), torch.from_numpy(np.stack(fits))
        chances = masked(policy.logits(states[t], sums, known), legal)
        action = chances.probs.argmax(dim=-1)
        if generator is not None:
            action = chances.probs.multinomial(1, generator=generator)[:, 0]
        steps.append((action, chances.log_prob(action), legal, known))
        sums[row, action] += encoded[t]
        loads[row, action] += episode.latents[t]
        compute_ms[row, action] = network.phases_ms(loads[row, action])[:, 0]
        used_bytes[row, action] += size
    actions, log_prob, legal, known = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
    balance = compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-9)
    excess = (used_bytes - capacity).amax(dim=1) / capacity.amax().clamp(min=1)
    device, reward = actions[:, episode.order.argsort()], torch.where(excess > 0, -excess, balance)
    return AutoShardRollout(device, actions, log_prob, legal, known, reward)


def update(
    policy: AutoShardPolicy,
    optimizer: torch.optim.Optimizer,
    episode: Episode,
    episodes: int,
    entropy_weight: float,
    generator: torch.Generator,
) -> UpdateFigures:
    """Roll the episode out by the policy as it is, then take two optimizer steps, each on `episodes` rollouts.

    In the second step, the policy differs from the one that acted. Returns the means over both.
    """
    taken = rollout(policy, episode, _PER_BEHAVIOUR * episodes, generator)
    losses, entropies = [], []
    for part in zip(*(value.split(episodes) for value in taken), strict=True):
        loss, entropy = actor_critic_loss(policy, episode, AutoShardRollout(*part), entropy_weight)
        gradient_step(policy, optimizer, loss, "policy", _MAX_GRADIENT_NORM)
        losses.append(loss.item())
        entropies.append(entropy)
    return UpdateFigures(fmean(losses), taken.reward.mean().item(), fmean(entropies))


def actor_critic_loss(
    policy: AutoShardPolicy, episode: Episode, taken: AutoShardRollout, entropy_weight: float
) -> tuple[Float[Tensor, ""], float]:
    """The loss of one batch, summed over its steps as the authors do, and the mean entropy of a step in nats."""
    encoded = policy.encode(episode.features)  # [T, L]
    states = policy.states(encoded)  # [T, H]
    placed = nn.functional.one_hot(taken.actions, taken.legal.shape[-1])  # [B, T, D]
    added = placed[..., None] * encoded[:, None, :]  # [B, T, D, L]
    sums = added.cumsum(dim=1) - added  # of each device before the step
    chances = masked(policy.logits(states, sums, taken.known), taken.legal)  # [B, T] of D
    log_prob, entropy = chances.log_prob(taken.actions), chances.entropy()
    values = policy.value(states).squeeze(-1).expand_as(log_prob)  # of the reward to come
    rewards = torch.zeros_like(log_prob)
    rewards[:, -1] = taken.reward
    advantages = vtrace(taken.log_prob, log_prob.detach(), rewards, values.detach())
    loss = (
        -(advantages * log_prob).sum()
        + _VALUE_WEIGHT * 0.5 * (values.detach() + advantages - values).square().sum()
        - entropy_weight * entropy.sum()
    )
    return loss, entropy.mean().item()


@torch.no_grad()
def vtrace(
    behaviour_log_prob: Float[Tensor, "B T"],
    target_log_prob: Float[Tensor, "B T"],
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Advantages of the actions of whole episodes: with the values, targets to train the value estimate towards.

    Undiscounted, with importance weights truncated at 1; nothing follows the last step.

    Args:
        behaviour_log_prob: of each action under the policy that took it, the target's under the one that learns.
        values: estimated before each action, `rewards` come after it.
    """
    weight = (target_log_prob - behaviour_log_prob).exp().clamp(max=1)  # [B, T]
    advantages = torch.zeros_like(values)
    targets = nn.functional.pad(values, (0, 1))
    for t in reversed(range(values.shape[1])):
        advantages[:, t] = weight[:, t] * (rewards[:, t] + targets[:, t + 1] - values[:, t])
        targets[:, t] += advantages[:, t]
    return advantages


@dataclass(frozen=True)
class AutoShardPlacer(OrderedPlacer):
    """A trained policy and cost network; places by the policy's greedy choices alone, whatever the budget."""

    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    normaliser: Normaliser
    name: str = "autoshard"

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The policy's placement of whole tables; tables are packed if it ran out of memory or broke constraints.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        episode = Episode.of(task, self.cost_network, self.normaliser)
        placement = Placement.whole(rollout(self.policy, episode).device[0], task.num_devices)
        broken = violation(task, placement, is_measured=True)
        return Placement.whole(packed(task), task.num_devices) if broken else placement
