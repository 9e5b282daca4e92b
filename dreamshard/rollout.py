"""Roll a policy through the estimated MDP: many episodes at once, sampled or greedy.

The rollout itself needs no gradient; `log_probs` recomputes all its steps in one batch for training.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard import mdp
from dreamshard.cost_network import CostNetwork
from dreamshard.mdp import Episodes, State
from dreamshard.policy_network import DeviceView, PolicyNetwork


@dataclass(frozen=True)
class Rollout:
    """What happened in `B` episodes.

    Attributes:
        device: `[B, T]` of each table, in its task's own order.
        overall_ms: `[B]` predicted cost of the finished placements.
        feasible: `[B]` whether no device is over capacity.
        actions: `[B, T]` devices in the order of placing.
        legal: `[B, T, D]` the mask of every step.
        view: what the policy saw, stacked over steps: `[B, T, D, ...]`; None unless recorded.
    """

    device: Int[Tensor, "B T"]
    overall_ms: Float[Tensor, " B"]
    feasible: Bool[Tensor, " B"]
    actions: Int[Tensor, "B T"]
    legal: Bool[Tensor, "B T D"]
    view: DeviceView | None


@torch.no_grad()
def rollout(
    policy: PolicyNetwork,
    network: CostNetwork,
    episodes: Episodes,
    generator: torch.Generator | None,
    *,
    record: bool = False,
) -> Rollout:
    """Place every table; sampled with `generator`, greedy without.

    Args:
        record: keep what the policy saw, for `log_probs`.
    """
    batch, num_tables = episodes.order.shape
    tables_per_device = num_tables / episodes.num_devices
    encoded = policy.encode(episodes.features)  # [B, T, Lp]
    sums = encoded.new_zeros(batch, episodes.num_devices, encoded.shape[-1])
    state, rows = mdp.start(episodes), torch.arange(batch)
    actions, masks, views = [], [], []
    for t in range(num_tables):
        seen = view(network, policy, episodes, state, t)
        legal = mdp.legal_devices(episodes, state, t)
        logits = policy(sums, encoded[:, t], seen, tables_per_device).masked_fill(~legal, -torch.inf)
        action = choose(logits, generator)
        sums[rows, action] += encoded[:, t]
        state = mdp.step(episodes, state, t, action)
        actions.append(action)
        if record:
            masks.append(legal)
            views.append(seen)
    taken = torch.stack(actions, dim=1)  # [B, T]
    return Rollout(
        torch.empty_like(taken).scatter_(1, episodes.order, taken),
        network.overall_ms(state.sums),
        (state.used_bytes <= episodes.capacity_bytes).all(dim=1),
        taken,
        torch.stack(masks, dim=1) if record else torch.empty(batch, 0, episodes.num_devices, dtype=torch.bool),
        _stack(views) if record else None,
    )


def view(network: CostNetwork, policy: PolicyNetwork, episodes: Episodes, state: State, t: int) -> DeviceView:
    """What the policy sees before placing table `t`."""
    scale = episodes.reference_ms[:, None, None]
    before = network.phases_ms(state.sums) / scale  # [B, D, 4]
    after = before if policy.kind == "paper" else network.after_ms(state.sums, episodes.latents[:, t]) / scale
    return DeviceView(before, after, state.used_bytes / max(episodes.capacity_bytes, 1))


def choose(logits: Float[Tensor, "B D"], generator: torch.Generator | None) -> Int[Tensor, " B"]:
    """The best device, or one drawn from the softmax by the Gumbel-max trick."""
    if generator is None:
        return logits.argmax(dim=1)
    uniform = torch.rand(logits.shape, generator=generator).clamp(min=1e-20)
    return (logits - (-uniform.log()).log()).argmax(dim=1)


def log_probs(
    policy: PolicyNetwork, episodes: Episodes, taken: Rollout
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each action and entropy of each step, with gradients, all steps in one batch.

    Raises:
        ValueError: the rollout was not recorded.
    """
    if taken.view is None:
        raise ValueError("this rollout kept nothing to recompute from; call rollout(..., record=True) to train on it")
    encoded = policy.encode(episodes.features)  # [B, T, L]
    placed = torch.nn.functional.one_hot(taken.actions, episodes.num_devices).to(encoded.dtype)  # [B, T, D]
    added = placed[..., None] * encoded[:, :, None, :]  # [B, T, D, L]
    sums = added.cumsum(dim=1) - added  # what each device held before the step
    logits = policy(sums, encoded, taken.view, taken.actions.shape[1] / episodes.num_devices)  # [B, T, D]
    log_p = torch.log_softmax(logits.masked_fill(~taken.legal, -torch.inf), dim=-1)
    entropy = -(log_p.exp() * log_p.masked_fill(~taken.legal, 0.0)).sum(-1)  # [B, T]
    return log_p.gather(-1, taken.actions[..., None]).squeeze(-1), entropy


def _stack(views: list[DeviceView]) -> DeviceView:
    return DeviceView(
        *(torch.stack([getattr(v, name) for v in views], dim=1) for name in ("before", "after", "memory"))
    )
