"""Improve a policy by REINFORCE on the estimated MDP; no hardware is touched."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamshard.cost_model import CostNetwork, TrainingDivergedError
from dreamshard.policy.mdp import Episodes
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.policy.rollout import Rollout, log_probs, rollout


class UpdateFigures(NamedTuple):
    """Figures of one policy update.

    Attributes:
        loss: with its entropy bonus.
        reward: minus the predicted cost relative to `Episodes.reference_ms`, mean over the episodes.
        entropy: of a step in nats, mean over the steps.
    """

    loss: float
    reward: float
    entropy: float


def policy_gradient_loss(
    log_prob: Float[Tensor, "B T"],
    entropy: Float[Tensor, "B T"],
    overall_ms: Float[Tensor, " B"],
    feasible: Bool[Tensor, " B"],
    entropy_weight: float,
) -> Float[Tensor, ""]:
    """REINFORCE (Williams 1992) with the batch as baseline: cost normalised to mean 0 and spread 1 over the episodes.

    Episodes that ran out of room count as the most expensive of the batch.
    """
    cost = torch.where(feasible, overall_ms, overall_ms.max())
    advantage = (cost.mean() - cost) / (cost.std(correction=0) + 1e-8)  # [B], above zero where cheaper than average
    return -(advantage.detach() * log_prob.sum(dim=1)).mean() - entropy_weight * entropy.sum(dim=1).mean()


def published_policy_gradient_loss(
    log_prob: Float[Tensor, "B T"],
    entropy: Float[Tensor, "B T"],
    overall_ms: Float[Tensor, " B"],
    feasible: Bool[Tensor, " B"],
    entropy_weight: float,
) -> Float[Tensor, ""]:
    """The same as in the authors' program (`train_rl`): means over all steps, the spread with Bessel's correction over them.

    There an episode without room ends with an error; here it counts as the most expensive of the batch.
    """
    cost = torch.where(feasible, overall_ms, overall_ms.max())[:, None].expand_as(log_prob)  # [B, T] each step's
    spread = cost.std(correction=1) if cost.numel() > 1 else cost.new_zeros(())
    advantage = (cost.mean() - cost) / (spread + 1e-8)
    return -(advantage.detach() * log_prob).mean() - entropy_weight * entropy.mean()


def gradient_step(
    policy: nn.Module, optimizer: torch.optim.Optimizer, loss: Float[Tensor, ""], *, max_norm: float
) -> None:
    """Take one optimizer step on `loss`, with the gradient's norm clipped to `max_norm`.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    if not torch.isfinite(loss):
        raise TrainingDivergedError(
            f"the policy's loss became {float(loss.detach())}, so its choices would be arbitrary; the last checkpoint is "
            "intact: look at the cost network's predictions, or lower the learning rate"
        )
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    optimizer.step()


def update(
    policy: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    network: CostNetwork,
    episodes: Episodes,
    entropy_weight: float,
    generator: torch.Generator,
) -> UpdateFigures:
    """Sample `episodes` and take one optimizer step towards the cheaper ones.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    sampled = rollout(policy, network, episodes, generator, record=True)
    return learn_from(policy, optimizer, episodes, sampled, entropy_weight)


def learn_from(
    policy: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    episodes: Episodes,
    sampled: Rollout,
    entropy_weight: float,
) -> UpdateFigures:
    """Take one optimizer step towards the cheaper ones of recorded rollouts.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    log_prob, entropy = log_probs(policy, episodes, sampled)
    published = policy.kind == "paper"
    of_episodes = published_policy_gradient_loss if published else policy_gradient_loss
    loss = of_episodes(log_prob, entropy, sampled.overall_ms, sampled.feasible, entropy_weight)
    gradient_step(policy, optimizer, loss, max_norm=math.inf if published else 10.0)
    reward = -(sampled.overall_ms / episodes.reference_ms).mean()
    return UpdateFigures(float(loss.detach()), float(reward), float(entropy.detach().mean()))
