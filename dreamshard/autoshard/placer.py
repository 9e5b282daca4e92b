"""A trained AutoShard: places by the policy's greedy choices alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.autoshard.cost_network import ComputeCostNetwork
from dreamshard.autoshard.episodes import episodes_of, rollout
from dreamshard.autoshard.policy_network import AutoShardPolicy
from dreamshard.baselines import packed
from dreamshard.cost_model import Normaliser
from dreamshard.limits import PlacementLimits
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.shards import Shards
from dreamshard.tables import Tables
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

        Where the policy runs out of room, tables are packed (`baselines.packed`). Constraints that it does not know
        (tables to be together or apart) are met by moving as few tables as are in the way.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        taken = rollout(self.policy, self.cost_network, episodes, None)
        if task.constraints.places_freely:
            return Placement.whole(taken.device[0] if float(taken.reward[0]) >= 0 else packed(task), task.num_devices)
        alone_ms = self.cost_network.compute_ms(self._latents(task.tables)).clamp(min=0)
        repaired = PlacementLimits.of(task).repaired(taken.device[0], alone_ms)
        return Placement.whole(packed(task) if repaired is None else repaired, task.num_devices)

    @torch.no_grad()
    def predict_compute_ms(self, task: PlacementTask, placement: Placement) -> Float[Tensor, " D"]:
        """Predicted forward and backward compute of each device; AutoShard predicts no communication."""
        shards = Shards.of(task, placement)
        return self.cost_network.device_ms(self._latents(shards.tables), shards.device[None], task.num_devices)[0]

    def _latents(self, tables: Tables) -> Float[Tensor, "T L"]:
        return self.cost_network.encode(self.normaliser(tables))
