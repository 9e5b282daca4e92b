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
from dreamshard.device_order import in_one_order_of_devices
from dreamshard.limits import PlacementLimits
from dreamshard.placement import Placement
from dreamshard.table_order import in_one_order
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class AutoShardPlacer:
    """A trained policy and cost network."""

    cost_network: ComputeCostNetwork
    policy: AutoShardPolicy
    normaliser: Normaliser
    name: str = "autoshard"

    @torch.no_grad()
    @in_one_order
    @in_one_order_of_devices
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The policy's placement of whole tables; there is no search, so `budget_ms` has no effect.

        Where the policy runs out of room, tables are packed (`baselines.packed`). Constraints that it does not know
        (tables to be together or apart) are met by moving as few tables as are in the way.

        Raises:
            NoPlacementError: nothing fits the devices' memory, or the task's constraints cannot be met.
        """
        del budget_ms
        episodes = episodes_of([task], self.cost_network, self.normaliser)
        taken = rollout(self.policy, self.cost_network, episodes, None)
        if task.constraints.places_freely:
            return Placement(taken.device[0] if float(taken.reward[0]) >= 0 else packed(task), task.num_devices)
        limits = PlacementLimits.of(task)
        alone_ms = self.cost_network.compute_ms(self._latents(task)).clamp(min=0)
        repaired = limits.repaired(limits.per_item(taken.device)[0], limits.summed(alone_ms))
        return Placement(packed(task) if repaired is None else limits.per_table(repaired), task.num_devices)

    @torch.no_grad()
    def predict_compute_ms(self, task: PlacementTask, placement: Placement) -> Float[Tensor, " D"]:
        """Predicted forward and backward compute of each device; AutoShard predicts no communication."""
        task, placement = task.sharded(placement)
        return self.cost_network.device_ms(self._latents(task), placement.device[None], task.num_devices)[0]

    def _latents(self, task: PlacementTask) -> Float[Tensor, "T L"]:
        return self.cost_network.encode(self.normaliser(task.tables))
