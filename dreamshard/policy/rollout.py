"""Roll a policy through the estimated MDP: many episodes at once, sampled or greedy.

The rollout runs in NumPy without gradients; `log_probs` recomputes all its steps in one batch for training.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.cost_model import CostNetwork
from dreamshard.cost_model.evaluator import Array, Indices, Loads, ShardEvaluator, mlp_arrays, run_mlp
from dreamshard.cost_model.paper import TableNetwork, device_latents
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episodes, State
from dreamshard.policy.policy_network import COST_COLUMNS, DeviceView, PolicyNetwork


@dataclass(frozen=True)
class Rollout:
    """`B` finished episodes.

    Attributes:
        device: `[B, T]` of each table, in its task's own order.
        overall_ms: `[B]` predicted cost of the finished placements.
        feasible: `[B]` whether no device is over capacity.
        actions: `[B, T]` devices in the order of placing.
        legal: `[B, T, D]` the mask of every step; empty unless recorded.
        view: `[B, T, D, ...]` inputs of the policy; None unless recorded.
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
    """Place every table.

    Args:
        policy: scores the devices.
        network: predicts the costs.
        episodes: to complete.
        generator: to sample with; None for the greedy choices.
        record: keep the inputs of the policy for `log_probs`.
    """
    batch, num_tables = episodes.order.shape
    num_devices = episodes.num_devices
    evaluator = network.evaluator()
    state = mdp.start(evaluator, batch, num_devices)
    scorer = _DeviceScorer(policy, episodes, evaluator, state.loads)
    latents, table_bytes, allowed = (
        each.numpy() for each in (episodes.latents, episodes.table_bytes, episodes.allowed)
    )
    noise = None if generator is None else gumbel((num_tables, batch, num_devices), generator)
    actions = np.empty((batch, num_tables), np.int64)
    seen = []
    for t in range(num_tables):
        cost_if_placed = scorer.cost_if_placed(evaluator, state, latents[:, t])
        legal = mdp.legal_devices(state.used_bytes, table_bytes[:, t], episodes.capacity_bytes, allowed[:, t])
        if record:
            memory = (state.used_bytes / np.maximum(episodes.capacity_bytes, 1)).astype(np.float32)
            seen.append((legal, scorer.costs.copy(), cost_if_placed, memory))
        logits = scorer.logits(t, cost_if_placed)
        if noise is not None:
            logits = logits + noise[t]
        actions[:, t] = action = np.where(legal, logits, -np.inf).argmax(axis=1)
        compute = mdp.step(evaluator, state, latents[:, t], table_bytes[:, t], action)
        scorer.update(state, t, action, compute)
    devices = torch.from_numpy(actions)
    recorded = [torch.from_numpy(np.stack(steps, axis=1)) for steps in zip(*seen, strict=True)]
    return Rollout(
        torch.empty_like(devices).scatter_(1, episodes.order, devices),
        network.overall_ms(torch.from_numpy(state.loads.sums)),
        torch.from_numpy((state.used_bytes <= episodes.capacity_bytes).all(axis=1)),
        devices,
        recorded[0] if record else torch.empty(batch, 0, num_devices, dtype=torch.bool),
        DeviceView(*recorded[1:]) if record else None,
    )


def log_probs(
    policy: PolicyNetwork, episodes: Episodes, finished: Rollout
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of each action and entropy of each step, with gradients, all steps in one batch.

    Raises:
        ValueError: the rollout was not recorded.
    """
    view = finished.view
    if view is None:
        raise ValueError("this rollout was not recorded, so it cannot be trained on; call rollout(..., record=True)")
    encoded = policy.encode(episodes.features)  # [B, T, L]
    placed = torch.nn.functional.one_hot(finished.actions, episodes.num_devices).to(encoded.dtype)  # [B, T, D]
    added = placed[..., None] * encoded[:, :, None, :]  # [B, T, D, L]
    sums = added.cumsum(dim=1) - added  # what each device held before the step
    tables_per_device = finished.actions.shape[1] / episodes.num_devices
    device_codes = policy.device_codes(sums, view.costs, view.memory, tables_per_device)  # [B, T, D, K]
    table_codes = policy.table_codes(episodes.features)  # [B, T, K]
    scores = (device_codes * table_codes[:, :, None, :]).sum(-1)
    logits = scores - policy.cost_weight() * view.cost_if_placed  # [B, T, D]
    log_p = masked_log_softmax(logits, finished.legal)
    entropy = masked_entropy(log_p, finished.legal)  # [B, T]
    return log_p.gather(-1, finished.actions[..., None]).squeeze(-1), entropy


def masked_log_softmax(logits: Float[Tensor, "*B D"], legal: Bool[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Log-probabilities over the legal devices, minus infinity elsewhere."""
    return torch.log_softmax(logits.masked_fill(~legal, -torch.inf), dim=-1)


def masked_entropy(log_p: Float[Tensor, "*B D"], legal: Bool[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
    """Entropy in nats of the log-probabilities of `masked_log_softmax`."""
    return -(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum(-1)


class _DeviceScorer:
    """The policy in NumPy, with the current codes of all devices.

    Attributes:
        costs: `[B, D, 3]` predicted costs of each device as the policy sees them; compute of a device without tables is 0,
            except that the policy `paper` sees what the paper's cost network predicts for it.
        reference_ms: `[B, 1]` what costs are divided by.
        all_to_alls: share of the communication that the policy sees.
    """

    def __init__(self, policy: PolicyNetwork, episodes: Episodes, evaluator: ShardEvaluator, loads: Loads) -> None:
        batch, num_tables = episodes.order.shape
        self.paper = policy.kind == "paper"
        self.encoded = policy.encode(episodes.features).numpy()
        self.table_codes = policy.table_codes(episodes.features).numpy()
        self.cost_weight = np.float32(float(policy.cost_weight()))
        reference_ms = torch.ones_like(episodes.reference_ms) if self.paper else episodes.reference_ms
        self.reference_ms = reference_ms.numpy()[:, None]
        self.all_to_alls = np.float32(0.5 if self.paper else 1)
        self.capacity = np.maximum(episodes.capacity_bytes, 1).astype(np.float32)  # [D]
        self.tables_per_device = np.float32(num_tables / episodes.num_devices)
        self.sums = np.zeros((batch, episodes.num_devices, self.encoded.shape[-1]), np.float32)
        self.costs = np.zeros((batch, episodes.num_devices, COST_COLUMNS), np.float32)
        if isinstance(policy.table, TableNetwork):
            self.cost, self.empty = mlp_arrays(policy.cost), policy.table.empty()
        if self.paper and loads.compute_ms.any():
            self.costs[..., 0], self.costs[..., 1], _ = evaluator.compute(loads.sums[0, :1])
        self.score = mlp_arrays(policy.score if self.paper else policy.device)
        self.costs[..., 2] = self.all_to_alls * loads.comm_ms / self.reference_ms
        self.codes = self._codes(self.sums, self.costs, np.zeros(self.costs.shape[:2], np.float32))  # [B, D, K]

    def cost_if_placed(self, evaluator: ShardEvaluator, state: State, latent: Array) -> Array:
        """`[B, D]` relative cost of placing a table on each device; 0 for a policy that does not see it."""
        if self.paper:
            return np.zeros_like(state.loads.compute_ms)
        relative: Array = mdp.cost_if_placed_ms(evaluator, state, latent) / self.reference_ms
        return relative

    def logits(self, t: int, cost_if_placed: Array) -> Array:
        """`[B, D]` of table `t`."""
        logits: Array = (self.codes @ self.table_codes[:, t, :, None])[..., 0]
        return logits if self.paper else logits - self.cost_weight * cost_if_placed

    def update(self, state: State, t: int, action: Indices, compute: tuple[Array, Array]) -> None:
        """Put table `t` on `action`, whose forward and backward compute are now `compute`."""
        changed = (state.episode, action)
        self.sums[changed] += self.encoded[:, t]
        costs = np.empty((len(action), COST_COLUMNS), np.float32)
        costs[:, 0], costs[:, 1] = compute
        costs[:, 2] = self.all_to_alls * state.loads.comm_ms[changed]
        costs /= self.reference_ms
        self.costs[changed] = costs
        memory = (state.used_bytes[changed] / self.capacity[action]).astype(np.float32)
        self.codes[changed] = self._codes(self.sums[changed], self.costs[changed], memory)

    def _codes(self, sums: Array, costs: Array, memory: Array) -> Array:
        if self.paper:
            held, paid = device_latents(sums, self.empty), np.maximum(run_mlp(self.cost, costs), 0)
            return run_mlp(self.score, np.concatenate([held, paid], axis=-1))
        return run_mlp(self.score, np.concatenate([sums / self.tables_per_device, costs, memory[..., None]], axis=-1))


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Array:
    """Noise that turns the largest logit into a sample of the softmax."""
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-20)
    noise: Array = (-(-uniform.log()).log()).numpy()
    return noise
