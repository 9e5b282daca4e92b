"""Search for the placement of the least predicted cost within a budget of work, by any cost model.

Starting placements are those of the caller and of every rule of thumb. Local search improves the legal ones, cheapest first,
until the budget is spent (`budget.py`). The result is never predicted to be worse than any starting placement.

Tables that are a large part of one device's load, or larger than a device, may be split by columns (`column_splits.py`):
the shards get starting placements too, and the search continues with them where a few steps promise a lower cost. Shards of
a table that meet on a device are joined, and a placement is priced as it is returned. What is decided does not depend on the
budget, so that a larger one never gives a placement that is predicted to cost more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.baselines import packed, rule_placements
from dreamshard.cost_model import CostModel, predict_ms
from dreamshard.device_order import in_one_order_of_devices
from dreamshard.limits import PlacementLimits
from dreamshard.placement import ColumnShard, Placement, is_legal
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episodes
from dreamshard.search.budget import Budget
from dreamshard.search.column_packing import packed_columns
from dreamshard.search.column_splits import allowed_parts, column_limits, fits_together, merged, splits, tight_splits
from dreamshard.search.local_search import LocalSearch
from dreamshard.tasks import PlacementTask

_IMPROVED_STARTS = 3
_PROMISE_STEPS = 64  # of local search, before it is decided whether to split tables
_SPLIT_GAIN = 0.03  # of the predicted cost: a smaller gain is within the error of predicting shards
_PERTURBATIONS = 40  # restarts from the best placement, a few tables moved at random


@dataclass(frozen=True)
class _StartingPlacements:
    """Placements that local search may start from.

    Attributes:
        whole_task: the task to place.
        task: the same in whole tables, or in column shards.
        shards: columns of each shard; None for whole tables.
        latents: `[T, L]`.
        single_ms: `[T]` predicted cost of each table alone.
        devices: `[S, T]` legal placements, the cheapest first; none where nothing fits.
        cost_ms: predicted for the first; infinite where there is none.
        limits: where tables may be; None for anywhere that has room.
    """

    whole_task: PlacementTask
    task: PlacementTask
    shards: tuple[ColumnShard, ...] | None
    latents: Float[Tensor, "T L"]
    single_ms: Float[Tensor, " T"]
    devices: Int[Tensor, "S T"]
    cost_ms: float
    limits: PlacementLimits | None


@dataclass(frozen=True)
class PlacementSearch:
    """A search by one prediction of costs.

    Attributes:
        costs: what predicts them, for the devices and hosts of the task.
        episodes: latents and single costs of a task's tables, or of its shards.
        starts: placements of these episodes to start from, besides the rules of thumb; `[B, T]` each.
        columns: whether tables may be split by columns.
        trial_work: units for whole tables and for each way to split them, before it is decided whether to split; 0 decides by
            a few steps from one start, which is as good where costs are a network's, whose errors a longer search exploits.
    """

    costs: CostModel
    episodes: Callable[[PlacementTask], Episodes]
    starts: Callable[[Episodes], Sequence[Int[Tensor, "B T"]]]
    columns: bool = True
    trial_work: float = 0.0

    @torch.no_grad()
    @in_one_order_of_devices
    def place(self, task: PlacementTask, budget: Budget) -> Placement:
        """The best placement found; starts always finish.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        coarse, fine = self._coarse_and_fine(task)
        if fine:
            coarse, coarse_ms = self._tried(coarse)
            finer, finer_ms = min((self._tried(starts) for starts in fine), key=lambda tried: tried[1])
            if finer_ms < coarse_ms * (1 - _SPLIT_GAIN):
                return self._improved(finer, budget)
        return self._improved(coarse, budget)

    def _improved(self, starts: _StartingPlacements, budget: Budget) -> Placement:
        """The result of local search until the budget is spent."""
        return self._searched(starts, budget).best

    def _searched(self, starts: _StartingPlacements, budget: Budget) -> "_Pricing":
        """What local search visited until the budget was spent."""
        pricing = _Pricing(self, starts)
        pricing.visit(starts.devices[0])
        device = self._local_search(starts).improve(
            _per_item(starts, starts.devices[:_IMPROVED_STARTS]),
            _PERTURBATIONS,
            budget,
            visit=None if starts.shards is None else lambda items: pricing.visit(_per_table(starts, items)),
        )
        if starts.shards is None:
            pricing.visit(_per_table(starts, device))
        return pricing

    def _tried(self, starts: _StartingPlacements) -> tuple[_StartingPlacements, float]:
        """The starts with the best of a trial before them, and its cost."""
        promising, cost_ms = self._promising(starts)
        if not self.trial_work:
            return promising, cost_ms
        pricing = self._searched(promising, Budget(self.trial_work))
        return replace(promising, devices=torch.cat([pricing.best_device[None], promising.devices])), pricing.best_ms

    def _promising(self, starts: _StartingPlacements) -> tuple[_StartingPlacements, float]:
        """The starts with the first one improved by a few steps, and the cost of the better of the two."""
        climbed, _ = self._local_search(starts).climbed(_per_item(starts, starts.devices[:1])[0], _PROMISE_STEPS)
        device = _per_table(starts, climbed)
        pricing = _Pricing(self, starts)
        pricing.visit(starts.devices[0])
        first_ms = pricing.best_ms
        pricing.visit(device)
        others = starts.devices if pricing.best_ms == first_ms else torch.cat([device[None], starts.devices[1:]])
        return replace(starts, devices=others), pricing.best_ms

    def _local_search(self, starts: _StartingPlacements) -> LocalSearch:
        task, limits, evaluator = starts.task, starts.limits, self.costs.evaluator()
        if limits is None:
            return LocalSearch(evaluator, starts.latents, task.table_bytes, task.memory_bytes, task.num_devices)
        return LocalSearch(
            evaluator,
            limits.summed(starts.latents),
            torch.from_numpy(limits.item_bytes),
            task.capacity_bytes,
            task.num_devices,
            limits,
        )

    def _coarse_and_fine(self, task: PlacementTask) -> tuple[_StartingPlacements, list[_StartingPlacements]]:
        """Starts with as few column shards as memory allows, and those of each finer split that fits.

        Raises:
            NoPlacementError: nothing fits, however fine the split, or the constraints cannot be met.
        """
        least, _ = allowed_parts(task)
        whole = self._starting_placements(task, task)
        if int(least.max()) > 1:
            if not self.columns:
                name = task.tables.names[int(least.argmax())]
                raise NoPlacementError(
                    f"table {name!r} is to be split by columns, but whole tables were asked for; allow table_wise for it, or "
                    "column shards"
                )
            whole = replace(whole, devices=whole.devices[:0], cost_ms=math.inf)
        if not self.columns:
            return (whole if len(whole.devices) else replace(whole, devices=packed(task)[None])), []
        proposals = splits(task, whole.single_ms)
        coarse = whole
        if int(proposals[0].max()) > 1 and fits_together(task, proposals[0]):
            coarse = self._starting_placements(task, *task.split(proposals[0]))
        fine = [self._starting_placements(task, *task.split(parts)) for parts in proposals[1:]]
        if not len(coarse.devices):
            coarse = self._coarsest_that_fits(whole)
        return coarse, [starts for starts in fine if len(starts.devices)]

    def latents(self, task: PlacementTask) -> Float[Tensor, "T L"]:
        """Those of the task's tables, in its order."""
        episodes = self.episodes(task)
        return episodes.latents[0][episodes.order[0].argsort()]

    def _coarsest_that_fits(self, whole: _StartingPlacements) -> _StartingPlacements:
        """Starts of the coarsest split by size that has a legal one, or else what an exact search finds."""
        task = whole.task
        for parts in tight_splits(task):
            starts = self._starting_placements(task, *task.split(parts))
            if len(starts.devices):
                return starts
        placement = packed_columns(task)
        if placement.shards is None:
            return replace(whole, devices=placement.device[None])
        starts = self._starting_placements(task, task.sharded(placement)[0], placement.shards)
        return replace(starts, devices=placement.device[None])

    def _starting_placements(
        self, whole_task: PlacementTask, task: PlacementTask, shards: tuple[ColumnShard, ...] | None = None
    ) -> _StartingPlacements:
        """The legal ones among the caller's and those of the rules; where constraints name places, they are repaired."""
        limits = None if task.constraints.places_freely else PlacementLimits.of(task)
        episodes = self.episodes(task)
        devices = [*self.starts(episodes), *(device[None] for device in rule_placements(task))]
        together = torch.cat(devices)
        task_order = episodes.order[0].argsort()
        latents, single_ms = episodes.latents[0][task_order], episodes.single_ms[0][task_order]
        if limits is None:
            legal = together[is_legal(task.table_bytes, together, task.num_devices, task.memory_bytes)]
        else:
            load = limits.summed(single_ms)
            repaired = [limits.repaired(device, load) for device in limits.per_item(together).unique(dim=0)]
            found = [limits.per_table(device) for device in repaired if device is not None]
            legal = torch.stack(found) if found else together[:0]
        cost_ms = predict_ms(self.costs, latents, legal, task.num_devices)
        ranked = torch.argsort(cost_ms, stable=True)
        cheapest_ms = float(cost_ms[ranked[0]]) if len(legal) else math.inf
        return _StartingPlacements(whole_task, task, shards, latents, single_ms, legal[ranked], cheapest_ms, limits)


class _Pricing:
    """The cheapest of the placements visited, as they are returned: with neighbouring shards joined."""

    def __init__(self, search: PlacementSearch, starts: _StartingPlacements) -> None:
        self.search, self.starts = search, starts
        self._least, _ = column_limits(starts.whole_task)
        self.best_ms = math.inf
        self.best_device = starts.devices[0]
        self.best = Placement(starts.devices[0], starts.task.num_devices, starts.shards)

    def visit(self, device: Int[Tensor, " T"]) -> None:
        """Keep this placement if it is cheaper than those before."""
        starts, costs = self.starts, self.search.costs
        placement = merged(Placement(device, starts.task.num_devices, starts.shards), self._least)
        latents = starts.latents
        if len(placement.device) < len(device):
            latents = self.search.latents(starts.whole_task.sharded(placement)[0])
        cost_ms = float(predict_ms(costs, latents, placement.device[None], placement.num_devices)[0])
        if cost_ms < self.best_ms:
            self.best, self.best_ms, self.best_device = placement, cost_ms, device


def _per_item(starts: _StartingPlacements, devices: Int[Tensor, "S T"]) -> Int[Tensor, "S I"]:
    return devices if starts.limits is None else starts.limits.per_item(devices)


def _per_table(starts: _StartingPlacements, items: Int[Tensor, " I"]) -> Int[Tensor, " T"]:
    return items if starts.limits is None else starts.limits.per_table(items)
