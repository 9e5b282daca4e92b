"""Greedy on the cost network: tables in descending predicted cost, each on the device where it costs least."""

from dataclasses import dataclass

import numpy as np

from dreamshard.baselines import packed
from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.search.annealing import alone_ms, greedy
from dreamshard.search.network_costs import NetworkCosts
from dreamshard.search.options import WHOLE, Options
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class GreedyCostPlacer(OrderedPlacer):
    """Places whole tables."""

    cost_network: CostNetwork
    normaliser: Normaliser
    name: str = "cost_greedy"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Packs tables if greedy finds no room; raises NoPlacementError if packing finds none either."""
        costs = NetworkCosts.of(task, self.cost_network, self.normaliser)
        options = Options.of(task, costs.devices_per_host, costs.loads, WHOLE, caching=False)
        menu, law = options.up_to(WHOLE), costs.law()
        found = greedy(menu, law, np.argsort(-alone_ms(menu, law), kind="stable"))
        if found is None:
            return Placement.whole(packed(task), task.num_devices)
        return options.placement(found, joined=True)
