"""What the LSTM rivals share: rollouts through a task's tables; and for those that learn from predicted costs, training by
REINFORCE and the trained placer.

Predicted costs come from DreamShard's cost network, memory and the order of tables from its MDP, so only the policies
differ. Each rival's network and objective are in its own module; `measured_rnn.py` trains on measured costs instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dreamshard.baselines import packed
from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.evaluator import ShardEvaluator
from dreamshard.peers.settings import require_positive
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes, episodes_of, legal_devices
from dreamshard.policy.reinforce import gradient_step, policy_gradient_loss
from dreamshard.policy.rollout import masked_entropy, masked_log_softmax
from dreamshard.table_order import in_one_order
from dreamshard.tasks import PlacementTask

Objective = Callable[[CostNetwork, Tensor], Tensor]
"""Maps a cost network and the devices' summed latents `[B, D, L]` to the cost to minimise, `[B]` milliseconds."""


@runtime_checkable
class DeviceScorer(Protocol):
    """A policy's state during `B` episodes."""

    def scores(self, t: int, held: Float[Tensor, "B D"], after: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Logits of the devices for the `t`-th table.

        Args:
            t: position in the order of placing.
            held: predicted compute of each device now, relative to `Episodes.reference_ms`.
            after: the same with the table added.
        """
        ...

    def place(self, t: int, device: Int[Tensor, " B"]) -> None:
        """Record that the `t`-th table went to `device`."""
        ...


@dataclass(frozen=True)
class LstmRollout:
    """The outcome of `B` episodes.

    Attributes:
        device: of each table, in its task's own order.
        log_prob: of each choice, with gradients where they are enabled.
        entropy: of each step, nats.
        sums: of the cost network's latents over each device's tables.
        feasible: whether no device is over capacity.
    """

    device: Int[Tensor, "B T"]
    log_prob: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    sums: Float[Tensor, "B D L"]
    feasible: Bool[Tensor, " B"]


@dataclass(frozen=True, kw_only=True)
class PeerTraining:
    """How an LSTM rival is trained on predicted costs.

    Attributes:
        updates: optimizer steps, each on one task.
        episodes: placements sampled per update.
        learning_rate: initial rate; falls linearly to a twentieth.
    """

    updates: int = 300
    episodes: int = 16
    learning_rate: float = 5e-3
    entropy_weight: float = 0.001

    def __post_init__(self) -> None:
        require_positive(self, zero_allowed=("entropy_weight",))


@dataclass(frozen=True)
class LstmPlacer:
    """An LSTM rival trained on predicted costs; places by the policy's greedy choices."""

    name: str
    policy: nn.Module
    cost_network: CostNetwork
    normaliser: Normaliser

    @torch.no_grad()
    @in_one_order
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither the policy nor packing finds room."""
        network = self.cost_network.for_task(task)
        episodes = episodes_of([task], network, self.normaliser)
        taken = lstm_rollout(self.policy, episodes, None, network.evaluator())
        return Placement(taken.device[0] if bool(taken.feasible[0]) else packed(task), task.num_devices)


@dataclass(frozen=True)
class LstmMethod:
    """A published method.

    Attributes:
        name: of its placer.
        policy: builds the untrained network for a number of devices; calling the network with `Episodes` gives a
            `DeviceScorer`.
        objective: cost to minimise.
        fixed_devices: whether a network serves only the number of devices it was built for.
    """

    name: str
    policy: Callable[[int], nn.Module]
    objective: Objective
    fixed_devices: bool = False

    def untrained(self, cost_network: CostNetwork, normaliser: Normaliser, num_devices: int, seed: int) -> LstmPlacer:
        """The placer before its first update; `seed` draws its weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return LstmPlacer(self.name, self.policy(num_devices), cost_network, normaliser)

    def trained(
        self,
        cost_network: CostNetwork,
        normaliser: Normaliser,
        tasks: Sequence[PlacementTask],
        seed: int,
        training: PeerTraining,
    ) -> LstmPlacer:
        """The placer after REINFORCE on the estimated MDP of `tasks`.

        Raises:
            TrainingDivergedError: the loss is not finite.
            ValueError: there are no tasks, or they differ in their number of devices and the method needs one number.
        """
        if not tasks:
            raise ValueError(
                f"there are no tasks to train {self.name} on, so it would place at random; give at least one"
            )
        counts = sorted({task.num_devices for task in tasks})
        if self.fixed_devices and len(counts) > 1:
            raise ValueError(
                f"{self.name} has one output per device, so it needs training tasks with one number of devices; got "
                f"{counts}: train one placer for each"
            )
        placer = self.untrained(cost_network, normaliser, counts[0], seed)
        policy, generator = placer.policy, torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(policy.parameters(), lr=training.learning_rate)
        for update in range(training.updates):
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate * max(1 - update / training.updates, 0.05)
            task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
            network = cost_network.for_task(task)
            episodes = episodes_of([task], network, normaliser).repeat(training.episodes)
            taken = lstm_rollout(policy, episodes, generator, network.evaluator())
            with torch.no_grad():
                cost_ms = self.objective(network, taken.sums)
            loss = policy_gradient_loss(taken.log_prob, taken.entropy, cost_ms, taken.feasible, training.entropy_weight)
            gradient_step(policy, optimizer, loss, max_norm=1.0)
        return placer


def lstm_rollout(
    policy: nn.Module, episodes: Episodes, generator: torch.Generator | None, evaluator: ShardEvaluator | None
) -> LstmRollout:
    """Place every table.

    Args:
        generator: samples the devices; None for the most probable ones.
        evaluator: predicts the compute that the policy sees; None for a policy that sees none, which gets zeros.
    """
    batch, num_tables = episodes.order.shape
    latents, table_bytes = episodes.latents.numpy(), episodes.table_bytes.numpy()
    sums = np.zeros((batch, episodes.num_devices, latents.shape[-1]), np.float32)
    held_ms = np.zeros((batch, episodes.num_devices), np.float32)
    used_bytes = np.zeros((batch, episodes.num_devices), np.int64)
    reference = episodes.reference_ms[:, None]  # [B, 1]
    scorer: DeviceScorer = policy(episodes)
    devices, log_probs, entropies, episode = [], [], [], np.arange(batch)
    for t in range(num_tables):
        after = sums + latents[:, t, None]  # [B, D, L]
        after_ms = np.zeros_like(held_ms)
        if evaluator is not None:
            forward, backward, _ = evaluator.compute(after.reshape(-1, after.shape[-1]))
            after_ms = (forward + backward).reshape(held_ms.shape)
        legal = torch.from_numpy(legal_devices(used_bytes, table_bytes[:, t], episodes.capacity_bytes))
        scores = scorer.scores(t, torch.from_numpy(held_ms) / reference, torch.from_numpy(after_ms) / reference)
        log_p = masked_log_softmax(scores, legal)  # [B, D]
        if generator is None:
            device = log_p.argmax(dim=-1)
        else:
            device = torch.multinomial(log_p.detach().exp(), 1, generator=generator)[:, 0]
        chosen = episode, device.numpy()
        sums[chosen], held_ms[chosen] = after[chosen], after_ms[chosen]
        used_bytes[chosen] += table_bytes[:, t]
        scorer.place(t, device)
        devices.append(device)
        log_probs.append(log_p.gather(-1, device[:, None])[:, 0])
        entropies.append(masked_entropy(log_p, legal))
    taken = torch.stack(devices, dim=1)
    return LstmRollout(
        torch.empty_like(taken).scatter_(1, episodes.order, taken),
        torch.stack(log_probs, dim=1),
        torch.stack(entropies, dim=1),
        torch.from_numpy(sums),
        torch.from_numpy((used_bytes <= episodes.capacity_bytes).all(axis=1)),
    )
