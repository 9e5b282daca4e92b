"""AutoShard's episodes, rewarded for the balance of predicted compute, its updates, and its placer. No hardware is touched.

The actor-critic learns with V-trace (Espeholt et al. 2018, arXiv 1802.01561), since the policy that acted is older than
the one that learns.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.autoshard.networks import DEVICE_INPUTS, AutoShardPolicy, ComputeCostNetwork
from dreamshard.cost_model import Normaliser, gradient_step
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.policy.mdp import Episode, UpdateFigures, legal_devices, masked_entropy, masked_log_softmax
from dreamshard.search.packing import PlacementLimits, packed
from dreamshard.tasks import PlacementTask

_PER_BEHAVIOUR = 2  # updates on rollouts of one policy
_VALUE_WEIGHT = 0.5  # of the loss of the value estimate
_MAX_GRADIENT_NORM = 40.0


class AutoShardRollout(NamedTuple):
    """`B` finished episodes of one task.

    Attributes:
        device: of each table, in the task's own order.
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


@torch.no_grad()
def rollout(
    policy: AutoShardPolicy, episode: Episode, count: int = 1, generator: torch.Generator | None = None
) -> AutoShardRollout:
    """Place every table `count` times; sampled with `generator`, greedy without."""
    (num_tables, num_devices), network = episode.allowed.shape, episode.network
    encoded, capacity = policy.encode(episode.features), episode.capacity_bytes
    states = policy.states(encoded)
    # The policy sees costs relative to an even share, so that they mean the same in a small task and in a large one
    even_ms = network.phases_ms(episode.latents)[:, 0].sum().clamp(min=1e-9) / num_devices
    sums = torch.zeros(count, num_devices, encoded.shape[1])
    loads = torch.zeros(count, num_devices, episode.latents.shape[1])
    compute_ms = torch.zeros(count, num_devices)
    used_bytes = torch.zeros(count, num_devices, dtype=torch.int64)
    known = torch.zeros(count, num_tables, num_devices, DEVICE_INPUTS)
    legal = torch.empty(count, num_tables, num_devices, dtype=torch.bool)
    actions = torch.empty(count, num_tables, dtype=torch.int64)
    log_prob = torch.empty(count, num_tables)
    row = torch.arange(count)
    for t, size in enumerate(episode.table_bytes.tolist()):
        known[:, t, :, 0] = (compute_ms / even_ms).clamp(max=num_devices)
        known[:, t, :, 1] = used_bytes / capacity.clamp(min=1)
        fits = legal_devices(used_bytes.numpy(), size, capacity.numpy(), episode.allowed[t].numpy())
        legal[:, t] = torch.from_numpy(fits)
        log_p = masked_log_softmax(policy.logits(states[t], sums, known[:, t]), legal[:, t])  # [B, D]
        drawn = None if generator is None else torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
        action = log_p.argmax(dim=-1) if drawn is None else drawn
        sums[row, action] += encoded[t]
        loads[row, action] += episode.latents[t]
        compute_ms[row, action] = network.phases_ms(loads[row, action])[:, 0]
        used_bytes[row, action] += size
        actions[:, t] = action
        log_prob[:, t] = log_p[row, action]
    device = torch.empty_like(actions)
    device[:, episode.order] = actions
    balance = compute_ms.amin(dim=1) / compute_ms.amax(dim=1).clamp(min=1e-9)
    excess = (used_bytes - capacity).amax(dim=1) / capacity.amax().clamp(min=1)
    return AutoShardRollout(device, actions, log_prob, legal, known, torch.where(excess > 0, -excess, balance))


def update(
    policy: AutoShardPolicy,
    optimizer: torch.optim.Optimizer,
    episode: Episode,
    episodes: int,
    entropy_weight: float,
    generator: torch.Generator,
) -> UpdateFigures:
    """Roll the episode out by the policy as it is, then take two optimizer steps, each on `episodes` rollouts.

    In the second step, the policy is no longer the one that acted. Returns the means over both.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    taken = rollout(policy, episode, _PER_BEHAVIOUR * episodes, generator)
    losses, entropies = [], []
    for part in zip(*(value.split(episodes) for value in taken), strict=True):
        loss, entropy = actor_critic_loss(policy, episode, AutoShardRollout(*part), entropy_weight)
        gradient_step(policy, optimizer, loss, "policy", _MAX_GRADIENT_NORM)
        losses.append(float(loss.detach()))
        entropies.append(entropy)
    return UpdateFigures(fmean(losses), float(taken.reward.mean()), fmean(entropies))


def actor_critic_loss(
    policy: AutoShardPolicy, episode: Episode, taken: AutoShardRollout, entropy_weight: float
) -> tuple[Float[Tensor, ""], float]:
    """The loss of one batch, summed over its steps as the authors do, and the mean entropy of a step in nats."""
    encoded = policy.encode(episode.features)  # [T, L]
    states = policy.states(encoded)  # [T, H]
    placed = torch.nn.functional.one_hot(taken.actions, taken.legal.shape[-1])  # [B, T, D]
    added = placed[..., None] * encoded[:, None, :]  # [B, T, D, L]
    sums = added.cumsum(dim=1) - added  # of each device before the step
    log_p = masked_log_softmax(policy.logits(states, sums, taken.known), taken.legal)  # [B, T, D]
    log_prob = log_p.gather(-1, taken.actions[..., None]).squeeze(-1)
    values = policy.values(states).expand_as(log_prob)
    entropy = masked_entropy(log_p, taken.legal)
    rewards = torch.zeros_like(log_prob)
    rewards[:, -1] = taken.reward
    target = vtrace(taken.log_prob, log_prob.detach(), rewards, values.detach())
    loss = (
        -(target.advantages * log_prob).sum()
        + _VALUE_WEIGHT * 0.5 * (target.values - values).square().sum()
        - entropy_weight * entropy.sum()
    )
    return loss, float(entropy.detach().mean())


class VTrace(NamedTuple):
    """Targets of one batch of episodes; constants, without gradients.

    Attributes:
        values: `[B, T]` to train the value estimate towards.
        advantages: `[B, T]` of the actions taken.
    """

    values: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace(
    behaviour_log_prob: Float[Tensor, "B T"],
    target_log_prob: Float[Tensor, "B T"],
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
) -> VTrace:
    """Targets for whole episodes, undiscounted, with importance weights truncated at 1; nothing follows the last step.

    Args:
        behaviour_log_prob: of each action under the policy that took it.
        target_log_prob: under the policy that learns.
        rewards: after each action.
        values: estimated before each action by the network that learns.
    """
    weight = (target_log_prob - behaviour_log_prob).exp().clamp(max=1)  # [B, T]
    after = torch.nn.functional.pad(values[:, 1:], (0, 1))
    delta = weight * (rewards + after - values)
    excess = torch.zeros_like(delta)  # of the target over the estimate
    following = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        excess[:, t] = following = delta[:, t] + weight[:, t] * following
    targets = values + excess
    after = torch.nn.functional.pad(targets[:, 1:], (0, 1))
    return VTrace(targets, weight * (rewards + after - values))


@dataclass(frozen=True)
class AutoShardPlacer(OrderedPlacer):
    """A trained policy and cost network; places by the policy's greedy choices alone."""

    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    normaliser: Normaliser
    name: str = "autoshard"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The policy's placement of whole tables.

        If the policy runs out of room, tables are packed (`packing.packed`). Constraints that it does not know (tables to
        be together or apart) are met by moving as few tables as are in the way.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        episode = Episode.of(task, self.cost_network, self.normaliser)
        taken = rollout(self.policy, episode)
        device: Tensor | None = taken.device[0]
        if not task.constraints.places_freely:
            alone_ms = self.cost_network.compute_ms(episode.latents[episode.order.argsort()])
            device = PlacementLimits.of(task).repaired(taken.device[0], alone_ms.double().numpy())
        elif float(taken.reward[0]) < 0:
            device = None
        return Placement.whole(packed(task) if device is None else device, task.num_devices)
