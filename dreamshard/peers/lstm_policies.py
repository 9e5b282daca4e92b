"""What the two recurrent rivals share: take an LSTM through the tables, a device for each, and improve it by REINFORCE.

Costs come from the cost network that DreamShard has trained, memory and order of tables from the same MDP, so that what
is compared is the policy alone. Which network scores the devices is in `rnn.py` and `autoshard.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dreamshard.baselines import pack_by_size
from dreamshard.cost_model.fast_evaluation import shard_costs
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.fitting import TrainingDivergedError
from dreamshard.cost_model.networks import CostNetwork
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes, episodes_of, legal_devices
from dreamshard.policy.reinforce import policy_gradient_loss
from dreamshard.tasks import PlacementTask

Objective = Callable[[CostNetwork, Tensor], Tensor]
"""From a cost network and the devices' sums `[B, D, L]` to what each episode is judged by, `[B]` milliseconds."""


@runtime_checkable
class Walk(Protocol):
    """A policy on its way through `B` episodes."""

    def logits(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Scores of the devices for the `t`-th table.

        Args:
            t: in the order of placing.
            held: predicted compute of each device as it stands, relative to `Episodes.reference_ms`.
            after: the same once it also holds the table.
        """
        ...

    def took(self, t: int, device: Int[Tensor, " B"]) -> None:
        """Takes in that the `t`-th table went to `device`."""
        ...


class RecurrentPolicy(nn.Module):
    """A network that scores devices for one table after another."""

    def begin(self, episodes: Episodes) -> Walk:
        """The start of a walk through `episodes`.

        Raises:
            NoPlacementError: the policy cannot place tasks of this shape.
        """
        raise AssertionError("a subclass says how")


@dataclass(frozen=True)
class Walked:
    """What happened in `B` episodes.

    Attributes:
        device: `[B, T]` of each table, in its task's own order.
        log_prob: `[B, T]` of each choice, with gradients where they are enabled.
        entropy: `[B, T]` of each step.
        sums: `[B, D, L]` of the cost network's latents over each device's tables.
        feasible: `[B]` whether no device is over capacity.
    """

    device: Int[Tensor, "B T"]
    log_prob: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    sums: Float[Tensor, "B D L"]
    feasible: Bool[Tensor, " B"]


@dataclass(frozen=True, kw_only=True)
class PeerTraining:
    """How a recurrent rival is trained.

    Attributes:
        updates: steps of the optimizer, each on one task.
        episodes: placements sampled per update.
        learning_rate: at the start; falls linearly to a twentieth.
        entropy_weight: of the entropy bonus.
    """

    updates: int = 300
    episodes: int = 16
    learning_rate: float = 5e-3
    entropy_weight: float = 0.001

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0 and each.name != "entropy_weight":
                raise ValueError(f"{each.name} is {value}, but training needs it above 0; raise it")


def walk(
    policy: RecurrentPolicy, network: CostNetwork, episodes: Episodes, generator: torch.Generator | None
) -> Walked:
    """Place every table; sampled with `generator`, greedy without."""
    batch, num_tables = episodes.order.shape
    costs = shard_costs(network)
    latents, table_bytes = episodes.latents.numpy(), episodes.table_bytes.numpy()
    sums = np.zeros((batch, episodes.num_devices, latents.shape[-1]), np.float32)
    held_ms = np.zeros((batch, episodes.num_devices), np.float32)
    used_bytes = np.zeros((batch, episodes.num_devices), np.int64)
    reference = episodes.reference_ms[:, None]  # [B, 1]
    steps = policy.begin(episodes)
    devices, log_probs, entropies, every = [], [], [], np.arange(batch)
    for t in range(num_tables):
        after = sums + latents[:, t, None]  # [B, D, L]
        forward, backward, _ = costs.compute(after.reshape(-1, after.shape[-1]))
        after_ms = (forward + backward).reshape(held_ms.shape)
        relative = [torch.from_numpy(each) / reference for each in (held_ms, after_ms)]
        legal = torch.from_numpy(legal_devices(used_bytes, table_bytes[:, t], episodes.capacity_bytes))
        log_p = torch.log_softmax(steps.logits(t, *relative).masked_fill(~legal, -torch.inf), dim=-1)  # [B, D]
        device = _choose(log_p.detach(), generator)
        chosen = every, device.numpy()
        sums[chosen], held_ms[chosen] = after[chosen], after_ms[chosen]
        used_bytes[chosen] += table_bytes[:, t]
        steps.took(t, device)
        devices.append(device)
        log_probs.append(log_p.gather(-1, device[:, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum(-1))
    taken = torch.stack(devices, dim=1)
    return Walked(
        torch.empty_like(taken).scatter_(1, episodes.order, taken),
        torch.stack(log_probs, dim=1),
        torch.stack(entropies, dim=1),
        torch.from_numpy(sums),
        torch.from_numpy((used_bytes <= episodes.capacity_bytes).all(axis=1)),
    )


def improve(
    policy: RecurrentPolicy,
    network: CostNetwork,
    normaliser: Normaliser,
    tasks: Sequence[PlacementTask],
    objective: Objective,
    training: PeerTraining,
    generator: torch.Generator,
) -> list[float]:
    """REINFORCE on the estimated MDP; the mean objective of each update's episodes, in units of an even share.

    Raises:
        TrainingDivergedError: the loss is not finite.
        ValueError: there are no tasks.
    """
    if not tasks:
        raise ValueError("there are no tasks to train a rival on, so it would place at random; give at least one")
    optimizer = torch.optim.Adam(policy.parameters(), lr=training.learning_rate)
    reached = []
    for update in range(training.updates):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * max(1 - update / training.updates, 0.05)
        task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
        episodes = episodes_of([task], network, normaliser).repeat(training.episodes)
        walked = walk(policy, network, episodes, generator)
        with torch.no_grad():
            cost = objective(network, walked.sums)
        loss = policy_gradient_loss(walked.log_prob, walked.entropy, cost, walked.feasible, training.entropy_weight)
        if not torch.isfinite(loss):
            raise TrainingDivergedError(
                f"the rival's loss became {float(loss)}, so its choices would be arbitrary; look at the cost "
                "network's predictions, or lower the learning rate"
            )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        reached.append(float((cost / episodes.reference_ms).mean()))
    return reached


@dataclass(frozen=True)
class RecurrentPlacer:
    """A trained recurrent rival: its greedy choices."""

    name: str
    policy: RecurrentPolicy
    cost_network: CostNetwork
    normaliser: Normaliser

    @torch.no_grad()
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither the policy nor packing by size finds room."""
        walked = walk(self.policy, self.cost_network, episodes_of([task], self.cost_network, self.normaliser), None)
        return Placement(walked.device[0] if bool(walked.feasible[0]) else pack_by_size(task), task.num_devices)


def _choose(log_p: Float[Tensor, "B D"], generator: torch.Generator | None) -> Int[Tensor, " B"]:
    if generator is None:
        return log_p.argmax(dim=-1)
    return torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
