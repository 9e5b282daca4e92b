"""Turn a policy and a cost network into the best placement found within a time budget.

Starts: the policy's greedy rollout, sampled rollouts in one batch, greedy on the cost network, and every rule of thumb.
The legal starts are improved by local search, the most promising first, until time is out. The result is never
predicted to be worse than any start.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard import mdp
from dreamshard.baselines import baselines, pack_by_size
from dreamshard.cost_network import CostNetwork
from dreamshard.costs import DeviceCosts
from dreamshard.features import Normaliser
from dreamshard.local_search import LocalSearch
from dreamshard.mdp import Episodes, episodes_of
from dreamshard.placement import Placement, is_legal
from dreamshard.placer import NoPlacementError
from dreamshard.policy_network import PolicyNetwork
from dreamshard.rollout import rollout
from dreamshard.shard_costs import shard_costs
from dreamshard.tasks import PlacementTask

Clock = Callable[[], float]

_SAMPLED_CELLS = 40_000  # rollouts x tables x devices that are worth sampling
_IMPROVED_STARTS = 3
_KICKS = 40  # restarts from the best placement, a few tables moved at random


def default_budget_ms(task: PlacementTask) -> float:
    """40 ms for small tasks, growing with tables and devices: 0.08 s at 200 x 8, 0.8 s at 800 x 128."""
    tables, devices = len(task.tables), task.num_devices
    return 40 + 0.2 * max(tables - 50, 0) + 0.006 * tables * devices


@dataclass(frozen=True)
class DreamShardPlacer:
    """A trained policy and cost network.

    Attributes:
        rollouts: the most that are sampled besides the greedy one.
        budget_ms: for local search, from the call on; None for `default_budget_ms`. The starts are always finished.
        clock: seconds; what the budget is held against.
    """

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    rollouts: int = 4
    budget_ms: float | None = None
    clock: Clock = field(default=time.perf_counter, repr=False)
    name: str = "dreamshard"

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The best placement found.

        Args:
            budget_ms: instead of the placer's own.

        Raises:
            NoPlacementError: nothing fits the devices' memory.
        """
        budget = budget_ms if budget_ms is not None else self.budget_ms
        deadline = self.clock() + (default_budget_ms(task) if budget is None else budget) / 1000
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        latents = torch.empty_like(episodes.latents[0])
        latents[episodes.order[0]] = episodes.latents[0]  # [T, L] in the task's order
        found = self._starts(task, episodes)  # [S, T]
        cost = predict_ms(self.cost_network, latents, found, task.num_devices)  # [S]
        starts = found[torch.argsort(cost, stable=True)[:_IMPROVED_STARTS]]
        search = LocalSearch(
            shard_costs(self.cost_network), latents, task.table_bytes, task.memory_bytes, task.num_devices
        )
        device = search.best_of(starts, _KICKS, lambda: self.clock() >= deadline)
        ends = torch.stack([starts[0], device])
        best = int(predict_ms(self.cost_network, latents, ends, task.num_devices).argmin())
        return Placement(ends[best], task.num_devices)

    @torch.no_grad()
    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` predicted milliseconds per phase of any placement of `task`."""
        latents = self.cost_network.encode(self.normaliser(task.tables))
        sums = shard_sums(latents, placement.device[None], task.num_devices)[0]
        return DeviceCosts.from_phases(self.cost_network.phases_ms(sums).clamp(min=0))

    @torch.no_grad()
    def predict_overall_ms(self, task: PlacementTask, placement: Placement) -> float:
        """Predicted cost of the slowest device."""
        latents = self.cost_network.encode(self.normaliser(task.tables))
        return float(predict_ms(self.cost_network, latents, placement.device[None], task.num_devices)[0])

    def _starts(self, task: PlacementTask, episodes: Episodes) -> Int[Tensor, "S T"]:
        """Every legal start; packing by size if there is none."""
        found = [rollout(self.policy, self.cost_network, episodes, None)]
        sampled = min(self.rollouts, _SAMPLED_CELLS // (len(task.tables) * task.num_devices))
        if sampled:
            generator = torch.Generator().manual_seed(0)  # the same task gets the same placement
            found.append(rollout(self.policy, self.cost_network, episodes.repeat(sampled), generator))
        starts = [taken.device for taken in found]
        starts.append(cost_greedy(self.cost_network, episodes))
        for placer in baselines().values():
            try:
                starts.append(placer.place(task).device[None])
            except NoPlacementError:
                continue
        together = torch.cat(starts)
        legal = together[is_legal(task.table_bytes, together, task.num_devices, task.memory_bytes)]
        return legal if len(legal) else pack_by_size(task)[None]


@dataclass(frozen=True)
class PolicyPlacer:
    """The policy alone: one greedy rollout."""

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    name: str = "policy"

    @torch.no_grad()
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither the policy nor packing by size finds room."""
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        taken = rollout(self.policy, self.cost_network, episodes, None)
        return Placement(taken.device[0] if bool(taken.feasible[0]) else pack_by_size(task), task.num_devices)


@dataclass(frozen=True)
class GreedyCostPlacer:
    """Greedy on the cost network: descending predicted single cost, each to the device that is cheapest with it."""

    cost_network: CostNetwork
    normaliser: Normaliser
    name: str = "cost_greedy"

    @torch.no_grad()
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither this order nor the order by size finds room."""
        device = cost_greedy(self.cost_network, episodes_of([task], self.cost_network, self.normaliser))
        legal = is_legal(task.table_bytes, device, task.num_devices, task.memory_bytes)
        return Placement(device[0] if bool(legal[0]) else pack_by_size(task), task.num_devices)


@torch.no_grad()
def cost_greedy(network: CostNetwork, episodes: Episodes) -> Int[Tensor, "B T"]:
    """Greedy placements, not necessarily legal where memory is tight."""
    costs = shard_costs(network)
    batch, num_tables = episodes.order.shape
    state = mdp.start(costs, batch, episodes.num_devices)
    latents, table_bytes = episodes.latents.numpy(), episodes.table_bytes.numpy()
    taken = torch.empty(batch, num_tables, dtype=torch.int64)
    for t in range(num_tables):
        after = mdp.after_ms(costs, state, latents[:, t])
        legal = mdp.legal_devices(state.used_bytes, table_bytes[:, t], episodes.capacity_bytes)
        after[~legal] = float("inf")
        action = after.argmin(axis=1)
        mdp.step(costs, state, latents[:, t], table_bytes[:, t], action)
        taken[:, t] = torch.from_numpy(action)
    return torch.empty_like(taken).scatter_(1, episodes.order, taken)


def shard_sums(latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D L"]:
    """Latents summed over each device's tables."""
    sums = latents.new_zeros(device.shape[0], num_devices, latents.shape[1])
    index = device[:, :, None].expand(-1, -1, latents.shape[1])
    return sums.scatter_add_(1, index, latents.expand(device.shape[0], -1, -1))


def predict_ms(
    network: CostNetwork, latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int
) -> Float[Tensor, " B"]:
    """Predicted overall cost of many placements of the same tables."""
    return network.overall_ms(shard_sums(latents, device, num_devices))
