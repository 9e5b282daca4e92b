"""Greedy on the cost network: tables in descending predicted cost, each on the device where it costs least."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.baselines import packed
from dreamshard.cost_model import CostModel, CostNetwork, Normaliser
from dreamshard.legality import violation
from dreamshard.limits import PlacementLimits
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episodes, episodes_of
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class GreedyCostPlacer(OrderedPlacer):
    """A placer by `cost_greedy`."""

    cost_network: CostNetwork
    normaliser: Normaliser
    name: str = "cost_greedy"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Repaired where constraints name places; raises NoPlacementError where neither this order nor packing finds room."""
        network = self.cost_network.for_task(task)
        episodes = episodes_of([task], network, self.normaliser)
        placement = Placement.whole(cost_greedy(network, episodes)[0], task.num_devices)
        if task.constraints.places_freely:
            return placement if not violation(task, placement) else Placement.whole(packed(task), task.num_devices)
        load = episodes.single_ms[0][episodes.order[0].argsort()]
        repaired = PlacementLimits.of(task).repaired(placement.device, load)
        return Placement.whole(packed(task) if repaired is None else repaired, task.num_devices)


@torch.no_grad()
def cost_greedy(network: CostModel, episodes: Episodes) -> Int[Tensor, "B T"]:
    """Greedy placements by `mdp.cost_if_placed_ms`, not necessarily legal where memory is tight."""
    evaluator = network.evaluator()
    batch, num_tables = episodes.order.shape
    state = mdp.start(evaluator, batch, episodes.num_devices)
    latents, table_bytes, allowed = (
        each.numpy() for each in (episodes.latents, episodes.table_bytes, episodes.allowed)
    )
    chosen = torch.empty(batch, num_tables, dtype=torch.int64)
    for t in range(num_tables):
        cost_ms = mdp.cost_if_placed_ms(evaluator, state, latents[:, t])
        legal = mdp.legal_devices(state.used_bytes, table_bytes[:, t], episodes.capacity_bytes, allowed[:, t])
        cost_ms[~legal] = float("inf")
        device = cost_ms.argmin(axis=1)
        mdp.step(evaluator, state, latents[:, t], table_bytes[:, t], device)
        chosen[:, t] = torch.from_numpy(device)
    return torch.empty_like(chosen).scatter_(1, episodes.order, chosen)
