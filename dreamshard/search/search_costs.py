"""What a search asks of a prediction of costs.

Every shard is a load that adds up on its device. What devices wait for beside their own shards is a function of what the
collectives carry.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.compiled import DeviceLaw, Floats
from dreamshard.costs import DeviceCosts
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask

Figures = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class CollectiveLoad:
    """What collectives beside the all-to-all of table- and column-wise shards carry, for `N` placements.

    Attributes:
        row_dims: `[N]` dims of row-wise tables.
        all_reduce_bytes: `[N]` of the gradients of data-parallel tables.
        host_dims: `[N, H]` dims of tables on each host.
    """

    row_dims: Figures
    all_reduce_bytes: Figures
    host_dims: Figures

    @classmethod
    def none(cls, num_placements: int, num_hosts: int) -> "CollectiveLoad":
        """Nothing to carry."""
        return cls(np.zeros(num_placements), np.zeros(num_placements), np.zeros((num_placements, num_hosts)))

    def parts(self) -> tuple[Figures, Figures, Figures]:
        """The three fields."""
        return self.row_dims, self.all_reduce_bytes, self.host_dims


@runtime_checkable
class SearchCosts(Protocol):
    """Costs of the shards of one task."""

    @property
    def devices_per_host(self) -> int:
        """Devices that share a host."""
        ...

    @property
    def column_gain(self) -> float:
        """Share of the cost that splitting tables by columns must save, as large as the error of predicting it."""
        ...

    @property
    def spread_gain(self) -> float:
        """The same of other ways to shard."""
        ...

    def loads(self, shards: Shards) -> Floats:
        """`[S, L]` additive loads."""
        ...

    def law(self) -> DeviceLaw:
        """What summed loads cost."""
        ...

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` milliseconds per phase."""
        ...
