"""Actor-critic with V-trace (Espeholt et al. 2018, arXiv 1802.01561): the policy learns from an older copy's episodes."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.autoshard.episodes import Episodes, Rollout, rollout
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork
from dreamshard.cost_model import gradient_step
from dreamshard.policy.mdp import masked_entropy, masked_log_softmax
from dreamshard.policy.reinforce import UpdateFigures

_VALUE_WEIGHT = 0.5  # of the loss of the value estimate
_MAX_GRADIENT_NORM = 40.0


def actor_critic_updates(
    policy: AutoShardPolicy,
    optimizer: torch.optim.Optimizer,
    network: ComputeCostNetwork,
    episodes: Episodes,
    batch: int,
    entropy_weight: float,
    generator: torch.Generator,
) -> list[UpdateFigures]:
    """Roll all episodes out by the policy as it is, then take one optimizer step on each `batch` of them.

    From the second step on, the policy is no longer the one that acted.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    taken = rollout(policy, network, episodes, generator)
    figures = []
    for first in range(0, len(taken.reward), batch):
        part = slice(first, first + batch)
        loss, entropy = actor_critic_loss(policy, episodes[part], taken[part], entropy_weight)
        gradient_step(policy, optimizer, loss, "policy", _MAX_GRADIENT_NORM)
        figures.append(UpdateFigures(float(loss.detach()), float(taken.reward[part].mean()), entropy))
    return figures


def actor_critic_loss(
    policy: AutoShardPolicy, episodes: Episodes, taken: Rollout, entropy_weight: float
) -> tuple[Float[Tensor, ""], float]:
    """The loss of one batch, summed over its steps as the authors do, and the mean entropy of a step in nats."""
    encoded = policy.encode(episodes.features)  # [B, T, L]
    states = policy.states(encoded)
    added = torch.nn.functional.one_hot(taken.actions, taken.legal.shape[-1])[..., None] * encoded[:, :, None, :]
    sums = added.cumsum(dim=1) - added  # [B, T, D, L] of each device before the step
    log_p = masked_log_softmax(policy.logits(states, sums, taken.known), taken.legal)  # [B, T, D]
    log_prob = log_p.gather(-1, taken.actions[..., None]).squeeze(-1)
    values, entropy = policy.values(states), masked_entropy(log_p, taken.legal)
    rewards = torch.zeros_like(values)
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
    discount: float = 1.0,
) -> VTrace:
    """Targets for whole episodes, with importance weights truncated at 1; no reward comes after the last step.

    Args:
        behaviour_log_prob: of each action under the policy that took it.
        target_log_prob: under the policy that learns.
        rewards: after each action.
        values: estimated before each action by the network that learns.
        discount: of rewards, per step; the authors' is 1.
    """
    weight = (target_log_prob - behaviour_log_prob).exp().clamp(max=1)  # [B, T]
    after = torch.zeros_like(values)
    after[:, :-1] = values[:, 1:]
    delta = weight * (rewards + discount * after - values)
    excess = torch.zeros_like(values)  # of the target over the estimate
    following = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        excess[:, t] = following = delta[:, t] + discount * weight[:, t] * following
    targets = values + excess
    after[:, :-1] = targets[:, 1:]
    return VTrace(targets, weight * (rewards + discount * after - values))
