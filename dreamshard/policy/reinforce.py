"""Improve a policy by REINFORCE on the estimated MDP."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamshard.cost_model import gradient_step
from dreamshard.policy.mdp import Episode, PolicyNetwork, log_probs, rollout


class UpdateFigures(NamedTuple):
    """Figures of one policy update.

    Attributes:
        loss: with its entropy bonus.
        reward: minus the predicted cost in milliseconds, mean over the episodes; AutoShard's is the balance.
        entropy: of a step in nats, mean over the steps.
    """

    loss: float
    reward: float
    entropy: float

    @classmethod
    def mean(cls, figures: list["UpdateFigures"]) -> "UpdateFigures":
        """Means over several updates."""
        return cls(*(sum(values) / len(figures) for values in zip(*figures, strict=True)))


def policy_gradient_loss(
    log_prob: Float[Tensor, "B T"],
    entropy: Float[Tensor, "B T"],
    overall_ms: Float[Tensor, " B"],
    feasible: Bool[Tensor, " B"],
    entropy_weight: float,
) -> Float[Tensor, ""]:
    """REINFORCE (Williams 1992) as in the authors' program (`train_rl`), with the batch as baseline.

    Means are over all steps, and costs are in units of their spread, with Bessel's correction over all steps. An episode
    without room counts as the most expensive of the batch; in the authors' program it ends with an error.
    """
    cost = torch.where(feasible, overall_ms, overall_ms.max())[:, None].expand_as(log_prob)  # [B, T] each step's
    spread = cost.std(correction=1) if cost.numel() > 1 else cost.new_zeros(())
    advantage = (cost.mean() - cost) / (spread + 1e-8)  # above zero if cheaper than average
    return -(advantage.detach() * log_prob).mean() - entropy_weight * entropy.mean()


def update(
    policy: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    episode: Episode,
    episodes: int,
    entropy_weight: float,
    generator: torch.Generator,
) -> UpdateFigures:
    """Sample an episode `episodes` times and take one optimizer step towards the cheaper rollouts.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    taken = rollout(policy, episode, episodes, generator, record=True)
    log_prob, entropy = log_probs(policy, episode, taken)
    with torch.no_grad():
        overall_ms = episode.network.overall_ms(taken.loads)
    loss = policy_gradient_loss(log_prob, entropy, overall_ms, taken.feasible, entropy_weight)
    gradient_step(policy, optimizer, loss, "policy")
    return UpdateFigures(float(loss.detach()), -float(overall_ms.mean()), float(entropy.detach().mean()))
