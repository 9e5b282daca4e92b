"""Roll a policy through the estimated MDP: many episodes at once, sampled or greedy.

The rollout needs no gradient and runs on arrays; `log_probs` recomputes all its steps in one batch for training.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.fast_evaluation import Array, Loads, mlp_arrays, run_mlp, shard_costs
from dreamshard.cost_model.networks import CostNetwork
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episodes, State
from dreamshard.policy.network import COST_COLUMNS, DeviceView, PolicyNetwork


@dataclass(frozen=True)
class Rollout:
    """What happened in `B` episodes.

    Attributes:
        device: `[B, T]` of each table, in its task's own order.
        overall_ms: `[B]` predicted cost of the finished placements.
        feasible: `[B]` whether no device is over capacity.
        actions: `[B, T]` devices in the order of placing.
        legal: `[B, T, D]` the mask of every step; empty unless recorded.
        view: what the policy saw, `[B, T, D, ...]`; None unless recorded.
    """

    device: Int[Tensor, "B T"]
    overall_ms: Float[Tensor, " B"]
    feasible: Bool[Tensor, " B"]
    actions: Int[Tensor, "B T"]
    legal: Bool[Tensor, "B T2 D"]
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
    num_devices = episodes.num_devices
    costs = shard_costs(network)
    state = mdp.start(costs, batch, num_devices)
    actor = _Actor(policy, episodes, state.loads)
    latents, table_bytes = episodes.latents.numpy(), episodes.table_bytes.numpy()
    noise = None if generator is None else _gumbel((num_tables, batch, num_devices), generator)
    actions = np.empty((batch, num_tables), np.int64)
    kept = _Record(batch, num_tables, num_devices) if record else None
    for t in range(num_tables):
        after = mdp.after_ms(costs, state, latents[:, t]) / actor.reference_ms
        legal = mdp.legal_devices(state.used_bytes, table_bytes[:, t], episodes.capacity_bytes)
        if kept is not None:
            kept.add(t, actor.costs, after, state.used_bytes / max(episodes.capacity_bytes, 1), legal)
        logits = actor.logits(t, after)
        if noise is not None:
            logits = logits + noise[t]
        actions[:, t] = action = np.where(legal, logits, -np.inf).argmax(axis=1)
        compute = mdp.step(costs, state, latents[:, t], table_bytes[:, t], action)
        actor.update(state, t, action, compute)
    taken = torch.from_numpy(actions)
    return Rollout(
        torch.empty_like(taken).scatter_(1, episodes.order, taken),
        network.overall_ms(torch.from_numpy(state.loads.sums)),
        torch.from_numpy((state.used_bytes <= episodes.capacity_bytes).all(axis=1)),
        taken,
        torch.from_numpy(kept.legal) if kept else torch.empty(batch, 0, num_devices, dtype=torch.bool),
        kept.view() if kept else None,
    )


def log_probs(
    policy: PolicyNetwork, episodes: Episodes, taken: Rollout
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each action and entropy of each step, with gradients, all steps in one batch.

    Raises:
        ValueError: the rollout was not recorded.
    """
    if taken.view is None:
        raise ValueError("this rollout kept nothing to recompute from; call rollout(..., record=True) to train on it")
    num_devices = episodes.num_devices
    encoded = policy.encode(episodes.features)  # [B, T, L]
    placed = torch.nn.functional.one_hot(taken.actions, num_devices).to(encoded.dtype)  # [B, T, D]
    added = placed[..., None] * encoded[:, :, None, :]  # [B, T, D, L]
    sums = added.cumsum(dim=1) - added  # what each device held before the step
    view = taken.view
    codes = policy.device_codes(sums, view.costs, view.memory, taken.actions.shape[1] / num_devices)  # [B, T, D, K]
    wishes = policy.table_codes(episodes.features)  # [B, T, K]
    logits = (codes * wishes[:, :, None, :]).sum(-1) - policy.greediness() * view.after  # [B, T, D]
    log_p, entropy = masked_log_softmax(logits, taken.legal)
    return log_p.gather(-1, taken.actions[..., None]).squeeze(-1), entropy


def masked_log_softmax(
    logits: Float[Tensor, "*B D"], legal: Bool[Tensor, "*B D"]
) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B"]]:
    """Log-probabilities over the legal devices, minus infinity elsewhere, and their entropy in nats."""
    log_p = torch.log_softmax(logits.masked_fill(~legal, -torch.inf), dim=-1)
    return log_p, -(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum(-1)


class _Actor:
    """The policy as arrays, with the codes of all devices as they stand.

    Attributes:
        costs: `[B, D, 3]` relative predicted costs of each device; compute of a device without tables is taken as 0.
        reference_ms: `[B, 1]`.
    """

    def __init__(self, policy: PolicyNetwork, episodes: Episodes, loads: Loads) -> None:
        batch, num_tables = episodes.order.shape
        self.paper = policy.kind == "paper"
        self.encoded = policy.encode(episodes.features).numpy()
        self.wishes = policy.table_codes(episodes.features).numpy()
        self.greed = float(policy.greediness())
        self.reference_ms = episodes.reference_ms.numpy()[:, None]
        self.capacity = np.float32(max(episodes.capacity_bytes, 1))
        self.tables_per_device = np.float32(num_tables / episodes.num_devices)
        self.sums = np.zeros((batch, episodes.num_devices, self.encoded.shape[-1]), np.float32)
        self.costs = np.zeros((batch, episodes.num_devices, COST_COLUMNS), np.float32)
        if self.paper:
            self.cost, self.score = mlp_arrays(policy.cost), mlp_arrays(policy.score)
        else:
            self.device = mlp_arrays(policy.device)
        self.costs[..., 2] = loads.comm_ms / self.reference_ms
        self.codes = self._codes(self.sums, self.costs, np.zeros(self.costs.shape[:2], np.float32))  # [B, D, K]

    def logits(self, t: int, after: Array) -> Array:
        """`[B, D]` before table `t` is placed."""
        logits: Array = (self.codes @ self.wishes[:, t, :, None])[..., 0]
        return logits if self.paper else logits - np.float32(self.greed) * after

    def update(self, state: State, t: int, action: NDArray[np.int64], compute: tuple[Array, Array]) -> None:
        """Take in that table `t` went to `action`, whose forward and backward compute are now `compute`."""
        changed = (state.episode, action)
        self.sums[changed] += self.encoded[:, t]
        seen = np.empty((len(action), COST_COLUMNS), np.float32)
        seen[:, 0], seen[:, 1] = compute
        seen[:, 2] = state.loads.comm_ms[changed]
        seen /= self.reference_ms
        self.costs[changed] = seen
        memory = (state.used_bytes[changed] / self.capacity).astype(np.float32)
        self.codes[changed] = self._codes(self.sums[changed], self.costs[changed], memory)

    def _codes(self, sums: Array, costs: Array, memory: Array) -> Array:
        if self.paper:
            return run_mlp(self.score, np.concatenate([sums, run_mlp(self.cost, costs)], axis=-1))
        return run_mlp(self.device, np.concatenate([sums / self.tables_per_device, costs, memory[..., None]], axis=-1))


class _Record:
    """What the policy saw, step by step."""

    def __init__(self, batch: int, num_tables: int, num_devices: int) -> None:
        shape = (batch, num_tables, num_devices)
        self.costs = np.empty((*shape, COST_COLUMNS), np.float32)
        self.after, self.memory = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.legal = np.empty(shape, np.bool_)

    def add(self, t: int, costs: Array, after: Array, memory: NDArray[np.float64], legal: NDArray[np.bool_]) -> None:
        self.costs[:, t], self.after[:, t], self.memory[:, t], self.legal[:, t] = costs, after, memory, legal

    def view(self) -> DeviceView:
        return DeviceView(torch.from_numpy(self.costs), torch.from_numpy(self.after), torch.from_numpy(self.memory))


def _gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Array:
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-20)
    noise: Array = (-(-uniform.log()).log()).numpy()
    return noise
