"""The prior placer: searches by the roofline of named hardware, so it needs nothing trained.

Its costs are those of the simulated testbed on the same hardware: public figures, not measurements of one's own devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.measured_on import MeasuredOn, StepSetting
from dreamshard.placement import Placement
from dreamshard.search.roofline_costs import RooflineCosts
from dreamshard.search.search_costs import SearchCosts
from dreamshard.search.searching_placer import SearchingPlacer
from dreamshard.tables import DEFAULT_BATCH
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class RooflinePlacer(SearchingPlacer):
    """Places by the roofline of `spec`.

    Attributes:
        spec: a preset, or hardware of one's own.
        budget_ms: as much work as an idle core does in this time; None for the task's own.
        columns: whether tables may be split by columns.
    """

    spec: AcceleratorSpec
    budget_ms: float | None = None
    columns: bool = True
    name: str = "prior"

    def costs(self, task: PlacementTask) -> SearchCosts:
        """See `SearchingPlacer`."""
        return RooflineCosts.of(task, self.spec)

    def starts(self, task: PlacementTask) -> Sequence[Int[Tensor, " T"]]:
        """See `SearchingPlacer`: none besides greedy and the rules of thumb."""
        return []

    @torch.no_grad()
    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase of any placement of `task`, as the roofline has them."""
        return self.costs(task).predict(task, placement)

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
