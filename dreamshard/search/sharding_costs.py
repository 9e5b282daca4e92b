"""What a search among every way to shard asks of a prediction of costs.

Every shard is a latent that adds up on its device, as for whole tables. What devices wait for beside their own shards and the
all-to-all is a function of what the other collectives carry.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.evaluator import ShardEvaluator
from dreamshard.costs import DeviceCosts
from dreamshard.placed_shards import PlacedShards
from dreamshard.sharding import ShardedPlacement
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
class ShardingCosts(Protocol):
    """Costs of the shards of one task, however its tables are sharded."""

    def shard_latents(self, shards: PlacedShards) -> Float[Tensor, "S L"]:
        """Latents of shards; the width of those that no all-to-all carries is 0."""
        ...

    def evaluator(self) -> ShardEvaluator:
        """Compute and all-to-all of sums of these latents."""
        ...

    def even_ms(self, sums: Figures) -> Figures:
        """`[N]` cost of all devices holding the same, fractions of tables, for sums `[N, L]`; its all-to-all included."""
        ...

    def other_ms(self, load: CollectiveLoad) -> Figures:
        """`[N, D]` both ways of all other collectives."""
        ...

    def predict_sharded(self, task: PlacementTask, placement: ShardedPlacement) -> DeviceCosts:
        """`[D]` milliseconds per phase of a placement, exactly."""
        ...
