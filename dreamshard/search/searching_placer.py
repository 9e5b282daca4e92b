"""What every placer that searches has in common: how much a search may do, and what it says if time cut it."""

from abc import ABC, abstractmethod

from dreamshard.placement import Placement
from dreamshard.search.budget import Budget
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask


class SearchingPlacer(ABC):
    """A placer whose search ends when its work is done.

    Attributes:
        budget_ms: work of the search: as much as an idle core does in this time; None for the task's own (`budget.py`).
    """

    budget_ms: float | None

    @abstractmethod
    def place_within(self, task: PlacementTask, budget: Budget) -> Placement:
        """See `place`."""

    @abstractmethod
    def place_sharded_within(self, task: PlacementTask, budget: Budget) -> ShardedPlacement:
        """See `place_sharded`."""

    def budget(self, task: PlacementTask, budget_ms: float | None = None) -> Budget:
        """Of a search for a placement of `task`; `budget_ms` overrides the placer's own."""
        return Budget.of(task, self.budget_ms if budget_ms is None else budget_ms)

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The best placement found, of whole tables and columns.

        Args:
            task: to be placed.
            budget_ms: overrides the placer's own. The same work gives the same placement on any machine, in more or less
                time.

        Raises:
            NoPlacementError: nothing fits the devices' memory, the task's constraints cannot be met, or a policy alone found
                nothing legal.
        """
        return self.place_within(task, self.budget(task, budget_ms))

    def place_sharded(self, task: PlacementTask, budget_ms: float | None = None) -> ShardedPlacement:
        """The best placement found by every way to shard that the task allows; arguments and errors as for `place`.

        Raises:
            ValueError: tables must be in host memory, or the cost model predicts whole tables and columns only.
        """
        return self.place_sharded_within(task, self.budget(task, budget_ms))
