"""The prior placer: searches by the roofline of named hardware, so it needs nothing trained.

Its costs are those of the simulated testbed on the same hardware: public figures, not measurements of one's own devices.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.cost_model import shard_sums
from dreamshard.costs import DeviceCosts
from dreamshard.measured_on import MeasuredOn, StepSetting
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes
from dreamshard.search.budget import Budget
from dreamshard.search.cost_greedy import cost_greedy
from dreamshard.search.placement_search import PlacementSearch
from dreamshard.search.roofline_costs import RooflineCosts
from dreamshard.search.roofline_sharding import RooflineSharding
from dreamshard.search.searching_placer import SearchingPlacer
from dreamshard.search.sharded_search import ShardedSearch
from dreamshard.sharding import ShardedPlacement
from dreamshard.table_order import in_one_order
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

_SPREAD_GAIN = 0.005  # of the predicted cost that spreading tables must save
_TRIAL_WORK = 100.0  # units: a search is never wrong about these costs, so how well it does is all that can go wrong


@dataclass(frozen=True)
class RooflinePlacer(SearchingPlacer):
    """Places by the roofline of `spec`.

    Attributes:
        spec: a preset, or hardware of one's own.
        budget_ms: as much work as an idle core does in this time; None for the task's own (`budget.py`).
        columns: whether tables may be split by columns.
    """

    spec: AcceleratorSpec
    budget_ms: float | None = None
    columns: bool = True
    name: str = "prior"

    @torch.no_grad()
    @in_one_order
    def place_within(self, task: PlacementTask, budget: Budget) -> Placement:
        """The best placement found.

        Raises:
            NoPlacementError: nothing fits the devices' memory.
        """
        return self._place(task, budget)

    def _place(self, task: PlacementTask, budget: Budget) -> Placement:
        costs = self._costs(task)
        additive = replace(costs, exact=False)

        def starts(episodes: Episodes) -> list[Int[Tensor, "B T"]]:
            return [cost_greedy(additive, episodes)]

        return PlacementSearch(costs, costs.episodes, starts, self.columns, trial_work=_TRIAL_WORK).place(task, budget)

    @torch.no_grad()
    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase of any placement of `task`, as the roofline has them."""
        task, placement = task.sharded(placement)
        costs = self._costs(task)
        return costs.device_costs(shard_sums(costs.latents(task), placement.device[None], task.num_devices)[0])

    @torch.no_grad()
    @in_one_order
    def place_sharded_within(self, task: PlacementTask, budget: Budget) -> ShardedPlacement:
        """The best placement found by every way to shard that the task allows.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        costs = RooflineSharding.of(task, self._costs(task))
        return ShardedSearch(costs, costs.devices_per_host, self._place, _SPREAD_GAIN).place(task, budget)

    @torch.no_grad()
    def predict_sharded(self, task: PlacementTask, placement: ShardedPlacement) -> DeviceCosts:
        """`[D]` milliseconds per phase of any placement of `task`, as the roofline has them."""
        return RooflineSharding.of(task, self._costs(task)).predict_sharded(task, placement)

    def predict_overall_ms(self, task: PlacementTask, placement: Placement) -> float:
        """Predicted cost of the slowest device."""
        return float(self.predict(task, placement).overall_ms())

    def measured_on(self, task: PlacementTask) -> MeasuredOn:
        """What the predictions for a task are of."""
        batch = task.batch_size or DEFAULT_BATCH
        return MeasuredOn(
            testbed="preset",
            hardware=f"simulated {self.spec.name}",
            num_devices=task.num_devices,
            devices_per_host=task.devices_per_host,
            setting=StepSetting(precision=task.precision, optimizer=task.optimizer, batch_size=batch),
        )

    def _costs(self, task: PlacementTask) -> RooflineCosts:
        return RooflineCosts.of(task, self.spec, task.batch_size or DEFAULT_BATCH)
