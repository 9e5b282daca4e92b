"""A trained AutoShard: places by the policy's greedy choices alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.autoshard.episodes import Episodes, rollout
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork
from dreamshard.cost_model import Normaliser, shard_sums
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.search.baselines import packed
from dreamshard.search.packing import PlacementLimits
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class AutoShardPlacer(OrderedPlacer):
    """A trained policy and cost network."""

    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    normaliser: Normaliser
    name: str = "autoshard"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The policy's placement of whole tables.

        If the policy runs out of room, tables are packed (`baselines.packed`). Constraints that it does not know (tables to
        be together or apart) are met by moving as few tables as are in the way.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        taken = rollout(self.policy, self.cost_network, Episodes.of([task], self.cost_network, self.normaliser), None)
        device: Tensor | None = taken.device[0]
        if not task.constraints.places_freely:
            alone_ms = self.cost_network.compute_ms(self.cost_network.encode(self.normaliser(task.tables)))
            device = PlacementLimits.of(task).repaired(taken.device[0], alone_ms)
        elif float(taken.reward[0]) < 0:
            device = None
        return Placement.whole(packed(task) if device is None else device, task.num_devices)

    @torch.no_grad()
    def predict_compute_ms(self, task: PlacementTask, placement: Placement) -> Float[Tensor, " D"]:
        """Predicted forward and backward compute of each device; AutoShard predicts no communication."""
        shards = Shards.of(task, placement)
        latents = self.cost_network.encode(self.normaliser(shards.tables))
        return self.cost_network.compute_ms(shard_sums(latents, shards.device[None], task.num_devices)[0])
