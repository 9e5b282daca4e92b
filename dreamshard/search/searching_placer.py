"""What every placer that searches has in common."""

from abc import abstractmethod
from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, OrderedPlacer
from dreamshard.search.column_splits import allowed_parts
from dreamshard.search.options import ALL
from dreamshard.search.search import default_moves, highest_level, search
from dreamshard.search.search_costs import SearchCosts
from dreamshard.tasks import PlacementTask

MOVES_PER_MS = 500
"""Changes that an idle core tries in a millisecond; a budget of time stands for as many, whatever the machine."""


class SearchingPlacer(OrderedPlacer):
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

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The best placement found by every way to shard that the task allows; errors as for `Placer.place`.

        Raises:
            ValueError: tables must be in host memory, or the cost model predicts whole tables and columns only.
        """
        constraints = task.constraints
        if highest_level(task) < ALL and not (constraints.caching or constraints.cached_share_of):
            least, _ = allowed_parts(task)
            if int(least.max()) > 1 and not self.columns:
                name = task.tables.names[int(least.argmax())]
                raise NoPlacementError(
                    f"table {name!r} is to be split by columns, but whole tables were asked for; allow table_wise"
                )
        starts = [device.numpy() for device in self.starts(task)]
        return search(
            task, self.costs(task), starts, self.moves(task, budget_ms), highest_level(task, columns=self.columns)
        )
