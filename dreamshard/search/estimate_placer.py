"""Our search by TorchRec's own estimates: what to use where a plan is judged by TorchRec's planner."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.placed_shards import PlacedShards
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes
from dreamshard.search.budget import Budget
from dreamshard.search.cost_greedy import cost_greedy
from dreamshard.search.estimate_costs import EstimateCosts
from dreamshard.search.placement_search import PlacementSearch
from dreamshard.search.searching_placer import SearchingPlacer
from dreamshard.search.sharded_search import ShardedSearch
from dreamshard.sharding import ShardedPlacement
from dreamshard.table_order import in_one_order
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

_SPREAD_GAIN = 1e-3  # of the predicted cost that spreading tables must save; the judge predicts alike
_TRIAL_WORK = 100.0  # units; see `PlacementSearch`


@dataclass(frozen=True)
class EstimatePlacer(SearchingPlacer):
    """Places by what TorchRec's estimator says of the hardware of `spec`.

    Attributes:
        spec: a preset, or hardware of one's own, whose bandwidths TorchRec's topology gets.
        budget_ms: as much work as an idle core does in this time; None for the task's own (`budget.py`).
        columns: whether tables may be split by columns.
    """

    spec: AcceleratorSpec
    budget_ms: float | None = None
    columns: bool = True
    name: str = "torchrec_costs"

    @torch.no_grad()
    @in_one_order
    def place_within(self, task: PlacementTask, budget: Budget) -> Placement:
        """The best placement found of whole tables and columns.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
            ValueError: torchrec is not installed.
        """
        return self._place(task, budget)

    def _place(self, task: PlacementTask, budget: Budget) -> Placement:
        costs = self._costs(task)

        def starts(episodes: Episodes) -> list[Int[Tensor, "B T"]]:
            return [cost_greedy(costs, episodes)]

        return PlacementSearch(costs, costs.episodes, starts, self.columns, trial_work=_TRIAL_WORK).place(task, budget)

    @torch.no_grad()
    @in_one_order
    def place_sharded_within(self, task: PlacementTask, budget: Budget) -> ShardedPlacement:
        """The best placement found by every way to shard that the task allows; errors as for `place_within`."""
        search = ShardedSearch(self._costs(task), self._per_host(task), self._place, _SPREAD_GAIN)
        return search.place(task, budget)

    @torch.no_grad()
    def predict_sharded(self, task: PlacementTask, placement: ShardedPlacement) -> DeviceCosts:
        """`[D]` milliseconds per phase of any placement of `task`, as TorchRec estimates them."""
        return self._costs(task).predict_sharded(task, placement)

    def _per_host(self, task: PlacementTask) -> int:
        return min(task.devices_per_host or self.spec.devices_per_node, task.num_devices)

    def _costs(self, task: PlacementTask) -> EstimateCosts:
        try:
            from dreamshard.torchrec import planner_inputs, shard_estimates
        except ImportError as error:
            raise ValueError(
                f"torchrec cannot be imported ({error}), so there are no estimates of it to place by; install it with "
                "`pip install --no-deps torchrec==1.8.0`, or place by a preset's roofline"
            ) from error
        spec = self.spec
        known: dict[tuple[str, ...], shard_estimates.ShardEstimates] = {}
        bandwidths = planner_inputs.Bandwidths(
            memory=spec.memory_bytes_per_s,
            link=spec.link_bytes_per_s,
            network=spec.network_bytes_per_s,
            host_memory=spec.host_bytes_per_s,
        )

        def estimate(part: PlacementTask, shards: PlacedShards) -> Float[Tensor, "S 4"]:
            key = part.tables.names
            if key not in known:
                known[key] = shard_estimates.ShardEstimates(part, bandwidths, self._per_host(task))
            shard_ms: Float[Tensor, "S 4"] = known[key].shard_ms(shards)
            return shard_ms

        return EstimateCosts(task, estimate)
