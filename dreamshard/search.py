"""Turn a policy and a cost network into the best placement found within a time budget.

Starts: the policy's greedy rollout, sampled rollouts in one batch, greedy on the cost network, and every rule of thumb.
The best legal start by predicted cost is then improved by moves and swaps of tables of the slowest device. The result
is never predicted to be worse than any start.
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
from dreamshard.mdp import Episodes, episodes_of
from dreamshard.placement import Placement, is_legal
from dreamshard.placer import NoPlacementError
from dreamshard.policy_network import PolicyNetwork
from dreamshard.rollout import rollout
from dreamshard.tasks import PlacementTask

Clock = Callable[[], float]

DEFAULT_BUDGET_MS = 50.0


@dataclass(frozen=True)
class DreamShardPlacer:
    """A trained policy and cost network.

    Attributes:
        rollouts: sampled besides the greedy one.
        budget_ms: for local search, from the call on; the starts are always finished.
        clock: seconds; what the budget is held against.
    """

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    rollouts: int = 16
    budget_ms: float = DEFAULT_BUDGET_MS
    clock: Clock = field(default=time.perf_counter, repr=False)
    name: str = "dreamshard"

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The best placement found.

        Raises:
            NoPlacementError: nothing fits the devices' memory.
        """
        deadline = self.clock() + (self.budget_ms if budget_ms is None else budget_ms) / 1000
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        latents = self.cost_network.encode(self.normaliser(task.tables))  # [T, L]
        starts = self._starts(task, episodes)  # [S, T]
        cost = _predict(self.cost_network, latents, starts, task.num_devices)  # [S]
        best = int(cost.argmin())
        device = improve(self.cost_network, latents, task, starts[best], lambda: self.clock() >= deadline)
        return Placement(device, task.num_devices)

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
        return float(_predict(self.cost_network, latents, placement.device[None], task.num_devices)[0])

    def _starts(self, task: PlacementTask, episodes: Episodes) -> Int[Tensor, "S T"]:
        """Every legal start: rollouts, greedy on the cost network, rules of thumb; packing by size if none is."""
        found = [rollout(self.policy, self.cost_network, episodes, None)]
        if self.rollouts:
            generator = torch.Generator().manual_seed(0)  # the same task gets the same placement
            found.append(rollout(self.policy, self.cost_network, episodes.repeat(self.rollouts), generator))
        starts = [taken.device[taken.feasible] for taken in found]
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
    state = mdp.start(episodes)
    actions = []
    for t in range(episodes.order.shape[1]):
        after = network.after_ms(state.sums, episodes.latents[:, t]).sum(-1)  # [B, D]
        action = after.masked_fill(~mdp.legal_devices(episodes, state, t), torch.inf).argmin(dim=1)
        state = mdp.step(episodes, state, t, action)
        actions.append(action)
    taken = torch.stack(actions, dim=1)
    return torch.empty_like(taken).scatter_(1, episodes.order, taken)


def shard_sums(latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D L"]:
    """Latents summed over each device's tables."""
    sums = latents.new_zeros(device.shape[0], num_devices, latents.shape[1])
    index = device[:, :, None].expand(-1, -1, latents.shape[1])
    return sums.scatter_add_(1, index, latents.expand(device.shape[0], -1, -1))


@torch.no_grad()
def improve(
    network: CostNetwork,
    latents: Float[Tensor, "T L"],
    task: PlacementTask,
    device: Int[Tensor, " T"],
    out_of_time: Callable[[], bool],
    least_gain: float = 1e-3,
) -> Int[Tensor, " T"]:
    """Move and swap tables of the slowest device while that is predicted to gain more than `least_gain` of the cost."""
    table_bytes, current = task.table_bytes, device.clone()
    sums = shard_sums(latents, current[None], task.num_devices)[0]  # [D, L]
    best = float(network.overall_ms(sums))
    while not out_of_time():
        slowest = int(network.phases_ms(sums).sum(-1).argmax())
        first, second, target = _neighbours(table_bytes, current, slowest, task)
        if len(first) == 0:
            break
        change = torch.where(second[:, None] >= 0, latents[second], 0.0) - latents[first]  # [C, L] on the slowest
        trial = sums.repeat(len(first), 1, 1)
        rows = torch.arange(len(first))
        trial[:, slowest] += change
        trial[rows, target] -= change
        cost = network.overall_ms(trial)  # [C]
        choice = int(cost.argmin())
        if float(cost[choice]) >= best * (1 - least_gain):
            break
        best = float(cost[choice])
        current[first[choice]] = target[choice]
        if int(second[choice]) >= 0:
            current[second[choice]] = slowest
        sums = shard_sums(latents, current[None], task.num_devices)[0]
    return current


def _neighbours(
    table_bytes: Int[Tensor, " T"], device: Int[Tensor, " T"], slowest: int, task: PlacementTask
) -> tuple[Int[Tensor, " C"], Int[Tensor, " C"], Int[Tensor, " C"]]:
    """Legal moves and swaps: a table of the slowest device, one of another device (or -1), and that device."""
    used = torch.zeros(task.num_devices, dtype=torch.int64).scatter_add(0, device, table_bytes)
    inside = torch.nonzero(device == slowest).flatten()
    outside = torch.nonzero(device != slowest).flatten()
    others = torch.tensor([d for d in range(task.num_devices) if d != slowest], dtype=torch.int64)
    moved, to = (grid.flatten() for grid in torch.meshgrid(inside, others, indexing="ij"))
    fits = used[to] + table_bytes[moved] <= task.memory_bytes
    out, back = (grid.flatten() for grid in torch.meshgrid(inside, outside, indexing="ij"))
    growth = table_bytes[out] - table_bytes[back]
    swappable = (used[device[back]] + growth <= task.memory_bytes) & (used[slowest] - growth <= task.memory_bytes)
    first = torch.cat([moved[fits], out[swappable]])
    second = torch.cat([torch.full_like(moved[fits], -1), back[swappable]])
    return first, second, torch.cat([to[fits], device[back[swappable]]])


def _predict(
    network: CostNetwork, latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int
) -> Float[Tensor, " B"]:
    return network.overall_ms(shard_sums(latents, device, num_devices))
