"""The estimated MDP and the policy network that places in it (arXiv 2210.02023). No hardware is touched.

The policy places one table after another; the cost network predicts what each device costs. A rollout is one compiled loop.
A step changes one device, so only that device is evaluated again. `log_probs` recomputes all steps of recorded rollouts in
one batch, with gradients.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical

from dreamshard.cost_model.compiled import (
    DeviceLaw,
    Floats,
    Ints,
    Mask,
    copy_into,
    first_ms,
    jit,
    linear,
    policy_costs_ms,
)
from dreamshard.cost_model.cost_network import LATENT, CostNetwork, Normaliser, TableNetwork, gradient_step, mlp
from dreamshard.tasks import PlacementTask, allowed_devices

COST_COLUMNS = 3
"""Predicted milliseconds of a device that the policy sees: forward compute, backward compute, one all-to-all."""

_FORBIDDEN = np.iinfo(np.int64).min


class PolicyNetwork(nn.Module):
    """Scores devices by their tables and their predicted costs (`models.py` of the authors' program).

    A device's latent is the sum of its tables' latents, which a table MLP computes. Its predicted milliseconds go through
    3-64-32 with ReLU after both layers. One linear layer turns both into the device's score; softmax over the legal devices
    is the policy. The table that is being placed has no influence on the scores.

    The score is a sum of a part for the tables and a part for the costs, and the former is a sum over tables, so a step of
    the MDP changes one device's score by one number for its table and one for its new costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.cost = nn.Sequential(*mlp(COST_COLUMNS, 64, LATENT), nn.ReLU())
        self.score = nn.Linear(2 * LATENT, 1)

    def table_scores(self, features: Float[Tensor, "T F"]) -> Float[Tensor, " T2"]:
        """Each table's part of the score of the device that holds it; at the end the part of a device without tables."""
        return self.table(nn.functional.pad(features, (0, 0, 0, 1))) @ self.score.weight[0, :LATENT]

    def cost_scores(self, costs: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B"]:
        """The part of a device's score for its costs, and the bias."""
        return self.cost(costs) @ self.score.weight[0, LATENT:] + self.score.bias


@dataclass(frozen=True)
class Episode:
    """A task before its first table is placed; tables in the order of placing.

    Attributes:
        order: `[T]` index of each table in the task: descending predicted cost on the first of empty devices. It includes
            the all-to-all, so a wide table comes early, while there is still a choice.
        features: `[T, F]` normalised.
        latents: `[T, L]` of the cost network.
        table_bytes: `[T]`.
        capacity_bytes: `[D]` memory for tables on each device; 0 if none may be there.
        allowed: `[T, D]` devices that may hold each table.
        network: with the communication of the task's devices.
        law: its costs of devices.
    """

    order: Int[Tensor, " T"]
    features: Float[Tensor, "T F"]
    latents: Float[Tensor, "T L"]
    table_bytes: Int[Tensor, " T"]
    capacity_bytes: Int[Tensor, " D"]
    allowed: Bool[Tensor, "T D"]
    network: CostNetwork
    law: DeviceLaw

    @classmethod
    @torch.no_grad()
    def of(cls, task: PlacementTask, network: CostNetwork, normaliser: Normaliser) -> "Episode":
        """The episode of a task."""
        network, features = network.for_task(task), normaliser(task.tables)
        latents = network.encode(features, network.ratios(task))  # [T, L]
        law = network.law(task.num_devices)
        order = torch.from_numpy(first_ms(law, latents.double().numpy())).argsort(descending=True, stable=True)
        table_bytes, allowed = task.table_bytes[order], allowed_devices(task)[order]
        return cls(order, features[order], latents[order], table_bytes, task.capacity_bytes, allowed, network, law)


class Rollout(NamedTuple):
    """`B` finished episodes of one task.

    Attributes:
        device: `[B, T]` of each table, in the task's own order.
        loads: `[B, D, L]` latents summed over each device.
        feasible: `[B]` whether no device is over capacity.
        actions: `[B, T]` devices in the order of placing.
        costs: `[B, T, D, 3]` of the devices before each step, as the policy saw them.
        legal: `[B, T, D]` devices open to each step.
    """

    device: Int[Tensor, "B T"]
    loads: Float[Tensor, "B D L"]
    feasible: Bool[Tensor, " B"]
    actions: Int[Tensor, "B T"]
    costs: Float[Tensor, "B T D 3"]
    legal: Bool[Tensor, "B T D"]


@torch.no_grad()
def rollout(
    policy: PolicyNetwork, episode: Episode, count: int = 1, generator: torch.Generator | None = None
) -> Rollout:
    """Complete the episode `count` times; sampled with `generator`, greedy without."""
    noise = torch.zeros(count, *episode.allowed.shape)
    if generator is not None:  # Gumbel's, which turns the largest score into a sample of the softmax
        noise = -(-torch.rand(noise.shape, generator=generator).clamp(min=1e-20).log()).log()
    capacity = episode.capacity_bytes.numpy()
    actions, loads, used_bytes, costs, legal = _place(
        episode.law,
        _Scorer.of(policy, episode.features),
        episode.latents.double().numpy(),
        capacity,
        episode.table_bytes.numpy(),
        episode.allowed.numpy(),
        noise.double().numpy(),
    )
    device, feasible = actions[:, episode.order.argsort().numpy()], (used_bytes <= capacity).all(axis=1)
    return Rollout(*map(torch.from_numpy, (device, loads.astype(np.float32), feasible, actions, costs, legal)))


def log_probs(
    policy: PolicyNetwork, episode: Episode, taken: Rollout, *, masks: bool = True
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each action of rollouts, and entropy of each step in nats, with gradients.

    With `masks` they are of the choice among the legal devices, otherwise among all.
    """
    placed = nn.functional.one_hot(taken.actions, len(episode.capacity_bytes))  # [B, T, D]
    held = placed.cumsum(dim=1) - placed  # tables of each device before the step
    scores = policy.table_scores(episode.features)
    added = placed * scores[:-1, None]
    tables = torch.where(held > 0, added.cumsum(dim=1) - added, scores[-1])
    legal = taken.legal if masks else torch.ones_like(taken.legal)
    chances = masked(tables + policy.cost_scores(taken.costs), legal)
    return chances.log_prob(taken.actions), chances.entropy()


def masked(logits: Float[Tensor, "*B D"], legal: Bool[Tensor, "*B D"]) -> Categorical:
    """A choice among the legal devices."""
    return Categorical(logits=logits.masked_fill(~legal, -torch.inf), validate_args=False)


@jit
def legal_devices(used: Ints, size: int, capacity: Ints, allowed: Mask) -> Mask:
    """`[D]` devices that may hold a table and have memory for it, by the bytes in use `[D]`.

    If none has, those with the most free memory are legal, so that a softmax stays defined; the episode ends over capacity.
    """
    free = np.where(allowed, capacity - used, _FORBIDDEN)
    return free >= min(size, free.max())


class _Scorer(NamedTuple):
    """A policy network as arrays: `table_scores` `[T + 1]`, and the layers of `cost_scores`."""

    tables: Floats
    first_weight: Floats
    first_bias: Floats
    second_weight: Floats
    second_bias: Floats
    weight: Floats
    bias: Floats

    @classmethod
    def of(cls, policy: PolicyNetwork, features: Float[Tensor, "T F"]) -> "_Scorer":
        """The policy's scores of tables with these features."""
        parts = (
            policy.table_scores(features),
            *policy.cost.parameters(),
            policy.score.weight[:, LATENT:],
            policy.score.bias,
        )
        # inputs of a layer before its outputs
        return cls(*(np.ascontiguousarray(weights.detach().numpy().T, np.float64) for weights in parts))


@jit
def _cost_score(scorer: _Scorer, costs: Floats) -> float:
    """`PolicyNetwork.cost_scores` of one device."""
    hidden = np.maximum(linear(costs, scorer.first_weight, scorer.first_bias), 0.0)
    hidden = np.maximum(linear(hidden, scorer.second_weight, scorer.second_bias), 0.0)
    return linear(hidden, scorer.weight, scorer.bias)[0]


@jit
def _place(
    law: DeviceLaw, scorer: _Scorer, latents: Floats, capacity: Ints, table_bytes: Ints, allowed: Mask, noise: Floats
) -> tuple[Ints, Floats, Ints, NDArray[np.float32], Mask]:
    """Complete an episode for each row of `noise`; see `Rollout` for the results, of which the third is bytes in use."""
    count, num_tables, num_devices = noise.shape
    actions, used = np.empty((count, num_tables), np.int64), np.zeros((count, num_devices), np.int64)
    loads = np.zeros((count, num_devices, latents.shape[1]))
    seen_costs = np.empty((count, num_tables, num_devices, COST_COLUMNS), np.float32)
    seen_legal = np.empty(noise.shape, np.bool_)
    empty_costs = np.empty(COST_COLUMNS)
    costs, tables, scores = np.empty((num_devices, COST_COLUMNS)), np.empty(num_devices), np.empty(num_devices)
    policy_costs_ms(law, loads[0, 0], empty_costs)
    empty_score = scorer.tables[-1] + _cost_score(scorer, empty_costs)
    for b in range(count):
        tables[:], scores[:] = 0.0, empty_score
        for d in range(num_devices):
            copy_into(costs[d], empty_costs)
        for t in range(num_tables):
            legal = legal_devices(used[b], table_bytes[t], capacity, allowed[t])
            copy_into(seen_legal[b, t], legal)
            device, best = 0, -np.inf
            for d in range(num_devices):
                copy_into(seen_costs[b, t, d], costs[d])
                score = scores[d] + noise[b, t, d]
                if legal[d] and score > best:
                    device, best = d, score
            actions[b, t] = device
            used[b, device] += table_bytes[t]
            copy_into(loads[b, device], loads[b, device] + latents[t])
            tables[device] += scorer.tables[t]
            policy_costs_ms(law, loads[b, device], costs[device])
            scores[device] = tables[device] + _cost_score(scorer, costs[device])
    return actions, loads, used, seen_costs, seen_legal


class UpdateFigures(NamedTuple):
    """Figures of one policy update, means over its episodes.

    The loss has its entropy bonus. The reward is minus the predicted cost in milliseconds, or AutoShard's balance. The
    entropy is of a step, in nats.
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
    """REINFORCE (Williams 1992) as in the authors' program (`train_rl`), with the batch as baseline.

    Means are over all steps, and costs are in units of their spread, with Bessel's correction over all steps. An episode
    without enough memory counts as the most expensive of the batch; in the authors' program it ends with an error.
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
    *,
    masks: bool = True,
) -> UpdateFigures:
    """Sample an episode `episodes` times and take one optimizer step towards the cheaper rollouts; see `log_probs`."""
    taken = rollout(policy, episode, episodes, generator)
    log_prob, entropy = log_probs(policy, episode, taken, masks=masks)
    with torch.no_grad():
        overall_ms = episode.network.overall_ms(taken.loads)
    loss = policy_gradient_loss(log_prob, entropy, overall_ms, taken.feasible, entropy_weight)
    gradient_step(policy, optimizer, loss, "policy")
    return UpdateFigures(loss.item(), -overall_ms.mean().item(), entropy.mean().item())
