"""What every placer that searches has in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.device_order import in_one_order_of_devices
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.search.column_splits import allowed_parts
from dreamshard.search.options import ALL, COLUMNS, WHOLE
from dreamshard.search.search import default_moves, highest_level, search
from dreamshard.search.search_costs import SearchCosts
from dreamshard.sharding import ShardedPlacement
from dreamshard.table_order import in_one_order
from dreamshard.tasks import PlacementTask

MOVES_PER_MS = 500
"""Changes that an idle core tries in a millisecond; a budget of time stands for as many, whatever the machine."""


class SearchingPlacer(ABC):
    """A placer that searches by a cost model.

    Attributes:
        budget_ms: work of the search: as much as an idle core does in this time; None for the task's own.
        columns: whether tables may be split by columns where memory does not require it.
    """

    budget_ms: float | None
    columns: bool

    @abstractmethod
    def costs(self, task: PlacementTask) -> SearchCosts:
        """The costs of a task's shards."""

    @abstractmethod
    def starts(self, task: PlacementTask) -> Sequence[Int[Tensor, " T"]]:
        """Devices of whole tables to start from, legal or not, besides greedy and the rules of thumb."""

    def moves(self, task: PlacementTask, budget_ms: float | None = None) -> int:
        """Changes that a search tries at each level; `budget_ms` overrides the placer's own."""
        budget_ms = self.budget_ms if budget_ms is None else budget_ms
        return default_moves(task) if budget_ms is None else round(MOVES_PER_MS * budget_ms)

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
        return self._place(task, self.moves(task, budget_ms))

    def place_sharded(self, task: PlacementTask, budget_ms: float | None = None) -> ShardedPlacement:
        """The best placement found by every way to shard that the task allows; arguments and errors as for `place`.

        Raises:
            ValueError: tables must be in host memory, or the cost model predicts whole tables and columns only.
        """
        return self._place_sharded(task, self.moves(task, budget_ms))

    @torch.no_grad()
    @in_one_order
    def _place(self, task: PlacementTask, moves: int) -> Placement:
        return self._columns(task, moves)

    @torch.no_grad()
    @in_one_order
    def _place_sharded(self, task: PlacementTask, moves: int) -> ShardedPlacement:
        allowed = task.constraints
        if highest_level(task) < ALL and not (allowed.caching or allowed.cached_share_of):
            return ShardedPlacement.of(self._columns(task, moves), task.tables, task.devices_per_host)
        return self._searched(task, moves, highest_level(task, columns=self.columns))

    @in_one_order_of_devices
    def _columns(self, task: PlacementTask, moves: int) -> Placement:
        least, _ = allowed_parts(task)
        if int(least.max()) > 1 and not self.columns:
            name = task.tables.names[int(least.argmax())]
            raise NoPlacementError(
                f"table {name!r} is to be split by columns, but whole tables were asked for; allow table_wise"
            )
        most = min(highest_level(task), COLUMNS) if self.columns else WHOLE
        found = self._searched(task, moves, most).as_columns()
        assert found is not None  # levels below ALL
        return found

    def _searched(self, task: PlacementTask, moves: int, most: int) -> ShardedPlacement:
        return search(task, self.costs(task), [device.numpy() for device in self.starts(task)], moves, most)
