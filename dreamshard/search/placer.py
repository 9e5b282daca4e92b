"""Turn a policy and a cost network into the best placement found within a time budget.

Starts: the policy's greedy rollout, sampled rollouts in one batch, greedy on the cost network, and every rule of thumb.
The legal starts are improved by local search, the most promising first, until time is out. The result is never
predicted to be worse than any start.

Tables that are a large part of what one device carries, or larger than a device, may be split by columns (`columns.py`): the
same starts are made of the shards, and the search goes on with them where they are predicted to be cheaper.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.baselines import baselines, pack_by_size
from dreamshard.cost_model.fast_evaluation import shard_costs
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.lower_bound import lower_bound_ms
from dreamshard.cost_model.networks import CostNetwork, StructuredCostNetwork
from dreamshard.costs import DeviceCosts
from dreamshard.placement import ColumnShard, Placement, is_legal
from dreamshard.placer import NoPlacementError
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episodes, episodes_of
from dreamshard.policy.network import PolicyNetwork
from dreamshard.policy.rollout import rollout
from dreamshard.search.column_splits import fits_together, merged, splits, tight_splits
from dreamshard.search.local_search import LocalSearch
from dreamshard.tasks import PlacementTask

Clock = Callable[[], float]

_SAMPLED_CELLS = 40_000  # rollouts x tables x devices that are worth sampling
_IMPROVED_STARTS = 3
_WORTH_SEARCHING = 1.1  # a split whose best start is dearer than this times what whole tables came to is left alone
_SPLIT_GAIN = 0.03  # of the predicted cost: a smaller promise is within the error of predicting shards
_KICKS = 40  # restarts from the best placement, a few tables moved at random


def default_budget_ms(task: PlacementTask) -> float:
    """40 ms for small tasks, growing with tables and devices: 0.16 s at 200 x 8, 0.8 s at 800 x 128."""
    tables, devices = len(task.tables), task.num_devices
    return 40 + 0.8 * max(tables - 50, 0) + 0.002 * tables * devices


@dataclass(frozen=True)
class _Starts:
    """Where a search may begin.

    Attributes:
        task: in whole tables, or in column shards.
        shards: which columns they are; None for whole tables.
        latents: `[T, L]`.
        single_ms: `[T]` predicted cost of each table alone.
        devices: `[S, T]` legal placements, the cheapest first; none where nothing was found to fit.
        cost_ms: predicted for the first; infinite where there is none.
    """

    task: PlacementTask
    shards: tuple[ColumnShard, ...] | None
    latents: Float[Tensor, "T L"]
    single_ms: Float[Tensor, " T"]
    devices: Int[Tensor, "S T"]
    cost_ms: float


@dataclass(frozen=True)
class DreamShardPlacer:
    """A trained policy and cost network.

    Attributes:
        rollouts: the most that are sampled besides the greedy one.
        budget_ms: for local search, from the call on; None for `default_budget_ms`. The starts are always finished.
        columns: whether tables may be split by columns.
        clock: seconds; what the budget is held against.
    """

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    rollouts: int = 4
    budget_ms: float | None = None
    columns: bool = True
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
        least, finer = self._candidates(task)
        began = self.clock()
        placement, cost_ms = self._searched(least, began + (deadline - began) * (0.5 if finer else 1.0))
        if finer is not None and finer.cost_ms < cost_ms * _WORTH_SEARCHING:
            split, split_ms = self._searched(finer, deadline)
            if split_ms < cost_ms * (1 - _SPLIT_GAIN):
                return split
        return placement

    @torch.no_grad()
    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` predicted milliseconds per phase of any placement of `task`."""
        task, placement = task.sharded(placement)
        latents = self.cost_network.encode(self.normaliser(task.tables))
        sums = shard_sums(latents, placement.device[None], task.num_devices)[0]
        return DeviceCosts.from_phases(self.cost_network.phases_ms(sums).clamp(min=0))

    @torch.no_grad()
    def predict_overall_ms(self, task: PlacementTask, placement: Placement) -> float:
        """Predicted cost of the slowest device."""
        task, placement = task.sharded(placement)
        latents = self.cost_network.encode(self.normaliser(task.tables))
        return float(predict_ms(self.cost_network, latents, placement.device[None], task.num_devices)[0])

    @torch.no_grad()
    def lower_bound_ms(self, task: PlacementTask, placement: Placement) -> float | None:
        """What no placement of the same tables or column shards is predicted to be below; see `lower_bound.py`.

        None for the paper's cost network, whose prediction has no such bound.
        """
        if not isinstance(self.cost_network, StructuredCostNetwork):
            return None
        tables = task.sharded(placement)[0].tables
        return lower_bound_ms(self.cost_network, self.cost_network.encode(self.normaliser(tables)), task.num_devices)

    def _searched(self, starts: _Starts, deadline: float) -> tuple[Placement, float]:
        """What local search makes of `starts` until the clock says `deadline`, and its predicted cost."""
        task = starts.task
        search = LocalSearch(
            shard_costs(self.cost_network), starts.latents, task.table_bytes, task.memory_bytes, task.num_devices
        )
        found = search.best_of(starts.devices[:_IMPROVED_STARTS], _KICKS, lambda: self.clock() >= deadline)
        ends = torch.stack([starts.devices[0], found])
        cost = predict_ms(self.cost_network, starts.latents, ends, task.num_devices)
        best = int(cost.argmin())
        return merged(Placement(ends[best], task.num_devices, starts.shards)), float(cost[best])

    def _candidates(self, task: PlacementTask) -> tuple[_Starts, _Starts | None]:
        """Starts with as few column shards as memory allows, and those of the most promising finer split, if any.

        Raises:
            NoPlacementError: nothing fits, however fine the split.
        """
        whole = self._starts(task)
        if not self.columns:
            return (whole if len(whole.devices) else replace(whole, devices=pack_by_size(task)[None])), None
        proposals = splits(task, whole.single_ms)
        least = whole
        if int(proposals[0].max()) > 1:
            least = self._starts(*task.split(proposals[0])) if fits_together(task, proposals[0]) else whole
        finer = [self._starts(*task.split(parts)) for parts in proposals[1:]]
        if not len(least.devices):
            least = self._least_that_fits(task)
        return least, min(finer, key=lambda starts: starts.cost_ms, default=None)

    def _least_that_fits(self, task: PlacementTask) -> _Starts:
        """Starts of the coarsest split by size of which some are legal."""
        found = None
        for parts in tight_splits(task):
            found = self._starts(*task.split(parts))
            if len(found.devices):
                return found
        packed = pack_by_size(task if found is None else found.task)[None]  # says why nothing fits, where nothing does
        return replace(self._starts(task) if found is None else found, devices=packed)

    def _starts(self, task: PlacementTask, shards: tuple[ColumnShard, ...] | None = None) -> _Starts:
        """Every legal start: rollouts, greedy on the cost network, rules of thumb, packing by size."""
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        found = [rollout(self.policy, self.cost_network, episodes, None)]
        sampled = min(self.rollouts, _SAMPLED_CELLS // (len(task.tables) * task.num_devices))
        if sampled:
            generator = torch.Generator().manual_seed(0)  # the same task gets the same placement
            found.append(rollout(self.policy, self.cost_network, episodes.repeat(sampled), generator))
        devices = [taken.device for taken in found]
        devices.append(cost_greedy(self.cost_network, episodes))
        for placer in baselines().values():
            try:
                devices.append(placer.place(task).device[None])
            except NoPlacementError:
                continue
        together = torch.cat(devices)
        legal = together[is_legal(task.table_bytes, together, task.num_devices, task.memory_bytes)]
        back = episodes.order[0].argsort()  # from the order of placing to the task's
        latents, single_ms = episodes.latents[0][back], episodes.single_ms[0][back]
        cost = predict_ms(self.cost_network, latents, legal, task.num_devices)
        ranked = torch.argsort(cost, stable=True)
        cheapest = float(cost[ranked[0]]) if len(legal) else math.inf
        return _Starts(task, shards, latents, single_ms, legal[ranked], cheapest)


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
    """Greedy on the cost network: descending predicted single cost, each where it is least dear (`mdp.after_ms`)."""

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
