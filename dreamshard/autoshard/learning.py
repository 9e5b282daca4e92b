"""Actor-critic with V-trace: improve AutoShard's policy on episodes that an older copy of it took."""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.autoshard.episodes import Episodes, Rollout, rollout
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork
from dreamshard.autoshard.vtrace import vtrace
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
