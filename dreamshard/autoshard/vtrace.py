"""V-trace: targets from episodes of a policy that has changed since (Espeholt et al. 2018, arXiv 1802.01561)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


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
