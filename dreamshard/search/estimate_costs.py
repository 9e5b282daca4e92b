"""TorchRec's own estimates as costs of a search: every shard adds its milliseconds to its device, and that is all.

A latent holds the estimates by phase (`dreamshard.torchrec.shard_estimates`); the collectives are among them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model import shard_sums
from dreamshard.cost_model.evaluator import Array, DeviceCommunication, Loads
from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.placed_shards import PlacedShards, placed_shards
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes
from dreamshard.search.sharding_costs import CollectiveLoad, Figures
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask

Estimate = Callable[[PlacementTask, PlacedShards], Float[Tensor, "S 4"]]
"""Milliseconds of each shard by `PHASES`."""


@dataclass(frozen=True)
class EstimateCosts:
    """`ShardingCosts`, and the costs of whole tables, that only add up.

    Attributes:
        task: to be placed.
        estimate: of a task's shards.
    """

    task: PlacementTask
    estimate: Estimate

    def shard_latents(self, shards: PlacedShards) -> Float[Tensor, "S 4"]:
        """See `ShardingCosts`."""
        return self.estimate(self.task, shards).float()

    def evaluator(self) -> "AdditiveEvaluator":
        """See `ShardingCosts`."""
        return AdditiveEvaluator()

    def overall_ms(self, sums: Float[Tensor, "*B D 4"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return sums.sum(dim=-1).amax(dim=-1)

    def even_ms(self, sums: Figures) -> Figures:
        """See `ShardingCosts`."""
        total: Figures = sums.sum(axis=1)
        return total

    def other_ms(self, load: CollectiveLoad) -> Figures:
        """See `ShardingCosts`; the shards' estimates hold all of it."""
        return np.zeros((len(load.row_dims), self.task.num_devices))

    def episodes(self, task: PlacementTask) -> Episodes:
        """One episode of the task's tables, or of its column shards, in descending cost."""
        nowhere = Placement(torch.zeros(len(task.tables), dtype=torch.int64), task.num_devices)
        latents = self.estimate(task, placed_shards(task, ShardedPlacement.of(nowhere, task.tables))).float()
        single_ms = latents.sum(dim=1)
        return Episodes.without_policy(task, latents, single_ms)

    def predict_sharded(self, task: PlacementTask, placement: ShardedPlacement) -> DeviceCosts:
        """See `ShardingCosts`."""
        shards = placed_shards(task, placement)
        return DeviceCosts.from_phases(
            shard_sums(self.estimate(task, shards), shards.device[None], task.num_devices)[0]
        )


class AdditiveEvaluator:
    """`ShardEvaluator` of latents that are milliseconds by phase."""

    step_units = 0.7

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardEvaluator`."""
        shape = (batch, num_devices)
        return Loads(
            np.zeros((*shape, len(PHASES)), np.float32),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            np.ones((*shape, len(PHASES)), np.float32),
            np.float32(0),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardEvaluator`."""
        return sums[:, :2].sum(axis=1), sums[:, 2:].sum(axis=1), np.ones((len(sums), len(PHASES)), np.float32)

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """See `ShardEvaluator`."""
        return loads.compute_ms + latent.sum(axis=1)[:, None], loads.comm_ms.copy()

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """See `ShardEvaluator`."""
        return np.zeros(len(sums), np.float32)

    def table_width(self, latents: Array) -> Array:
        """See `ShardEvaluator`."""
        return np.zeros(len(latents), np.float32)

    def communication(self, sums: Array) -> DeviceCommunication:
        """See `ShardEvaluator`."""
        nothing = np.zeros(len(sums), np.float32)
        return DeviceCommunication(nothing, nothing, 0.0, 0.0)
