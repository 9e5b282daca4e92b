"""Search for the placement of the least predicted cost within a time budget, by any cost model.

Starting placements are those of the caller and of every rule of thumb. Local search improves the legal ones, cheapest first,
until time is out. The result is never predicted to be worse than any starting placement.

Tables that are a large part of one device's load, or larger than a device, may be split by columns (`column_splits.py`):
the shards get starting placements too, and the search continues with them where they are predicted to be cheaper.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.baselines import baselines, pack_by_size
from dreamshard.cost_model import CostModel, predict_ms
from dreamshard.placement import ColumnShard, Placement, is_legal
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episodes
from dreamshard.search.column_splits import fits_together, merged, splits, tight_splits
from dreamshard.search.local_search import LocalSearch
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask

_IMPROVED_STARTS = 3
_WORTH_SEARCHING = 1.1  # a split is searched if its best start costs less than this times the result without it
_SPLIT_GAIN = 0.03  # of the predicted cost: a smaller gain is within the error of predicting shards
_PERTURBATIONS = 40  # restarts from the best placement, a few tables moved at random


def default_budget_ms(task: PlacementTask) -> float:
    """40 ms for small tasks, growing with tables and devices: 0.16 s at 200 x 8, 0.8 s at 800 x 128."""
    tables, devices = len(task.tables), task.num_devices
    return 40 + 0.8 * max(tables - 50, 0) + 0.002 * tables * devices


@dataclass(frozen=True)
class _StartingPlacements:
    """Placements that local search may start from.

    Attributes:
        task: in whole tables, or in column shards.
        shards: columns of each shard; None for whole tables.
        latents: `[T, L]`.
        single_ms: `[T]` predicted cost of each table alone.
        devices: `[S, T]` legal placements, the cheapest first; none where nothing fits.
        cost_ms: predicted for the first; infinite where there is none.
    """

    task: PlacementTask
    shards: tuple[ColumnShard, ...] | None
    latents: Float[Tensor, "T L"]
    single_ms: Float[Tensor, " T"]
    devices: Int[Tensor, "S T"]
    cost_ms: float


@dataclass(frozen=True)
class PlacementSearch:
    """A search by one prediction of costs.

    Attributes:
        costs: what predicts them, for the devices and hosts of the task.
        episodes: latents and single costs of a task's tables, or of its shards.
        starts: placements of these episodes to start from, besides the rules of thumb; `[B, T]` each.
        columns: whether tables may be split by columns.
        clock: seconds, for the budget.
    """

    costs: CostModel
    episodes: Callable[[PlacementTask], Episodes]
    starts: Callable[[Episodes], Sequence[Int[Tensor, "B T"]]]
    columns: bool = True
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The best placement found; `budget_ms` is `default_budget_ms` if None, and starts always finish.

        Raises:
            NoPlacementError: nothing fits the devices' memory.
        """
        deadline = self.clock() + (default_budget_ms(task) if budget_ms is None else budget_ms) / 1000
        coarse, fine = self._coarse_and_fine(task)
        began = self.clock()
        placement, cost_ms = self._improved(coarse, began + (deadline - began) * (0.5 if fine else 1.0))
        if fine is not None and fine.cost_ms < cost_ms * _WORTH_SEARCHING:
            split, split_ms = self._improved(fine, deadline)
            if split_ms < cost_ms * (1 - _SPLIT_GAIN):
                return split
        return placement

    def _improved(self, starts: _StartingPlacements, deadline: float) -> tuple[Placement, float]:
        """The result of local search until `deadline`, and its predicted cost."""
        task = starts.task
        search = LocalSearch(
            self.costs.evaluator(), starts.latents, task.table_bytes, task.memory_bytes, task.num_devices
        )
        device = search.improve(starts.devices[:_IMPROVED_STARTS], _PERTURBATIONS, lambda: self.clock() >= deadline)
        candidates = torch.stack([starts.devices[0], device])
        cost_ms = predict_ms(self.costs, starts.latents, candidates, task.num_devices)
        best = int(cost_ms.argmin())
        return merged(Placement(candidates[best], task.num_devices, starts.shards)), float(cost_ms[best])

    def _coarse_and_fine(self, task: PlacementTask) -> tuple[_StartingPlacements, _StartingPlacements | None]:
        """Starts with as few column shards as memory allows, and those of the most promising finer split, if any.

        Raises:
            NoPlacementError: nothing fits, however fine the split.
        """
        whole = self._starting_placements(task)
        if not self.columns:
            return (whole if len(whole.devices) else replace(whole, devices=pack_by_size(task)[None])), None
        proposals = splits(task, whole.single_ms)
        coarse = whole
        if int(proposals[0].max()) > 1 and fits_together(task, proposals[0]):
            coarse = self._starting_placements(*task.split(proposals[0]))
        fine = [self._starting_placements(*task.split(parts)) for parts in proposals[1:]]
        if not len(coarse.devices):
            coarse = self._coarsest_that_fits(whole)
        return coarse, min(fine, key=lambda starts: starts.cost_ms, default=None)

    def _coarsest_that_fits(self, whole: _StartingPlacements) -> _StartingPlacements:
        """Starts of the coarsest split by size that has a legal one."""
        starts = whole
        for parts in tight_splits(whole.task):
            starts = self._starting_placements(*whole.task.split(parts))
            if len(starts.devices):
                return starts
        return replace(starts, devices=pack_by_size(starts.task)[None])  # the error names what does not fit

    def _starting_placements(
        self, task: PlacementTask, shards: tuple[ColumnShard, ...] | None = None
    ) -> _StartingPlacements:
        """The legal ones among the caller's and the rules of thumb."""
        episodes = self.episodes(task)
        devices = list(self.starts(episodes))
        for placer in baselines().values():
            try:
                devices.append(placer.place(task).device[None])
            except NoPlacementError:
                continue
        together = torch.cat(devices)
        legal = together[is_legal(task.table_bytes, together, task.num_devices, task.memory_bytes)]
        task_order = episodes.order[0].argsort()
        latents, single_ms = episodes.latents[0][task_order], episodes.single_ms[0][task_order]
        cost_ms = predict_ms(self.costs, latents, legal, task.num_devices)
        ranked = torch.argsort(cost_ms, stable=True)
        cheapest_ms = float(cost_ms[ranked[0]]) if len(legal) else math.inf
        return _StartingPlacements(task, shards, latents, single_ms, legal[ranked], cheapest_ms)


def only_columns(placement: ShardedPlacement, placer: str) -> Placement:
    """The placement as whole tables and column shards.

    Raises:
        ValueError: a table is sharded otherwise, for which `placer` has no prediction.
    """
    columns = placement.as_columns()
    if columns is None:
        raise ValueError(
            f"the placement shards tables {', '.join(sorted(placement.sharding_types))}, but {placer} predicts whole tables "
            "and column shards in device memory only; give one of those"
        )
    return columns
