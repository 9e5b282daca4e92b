"""Search for the best placement by predicted cost.

placer          the trained placer: starting placements, local search, column splits
cost_greedy     greedy on the cost network
local_search    moves and swaps off the critical devices
column_splits   tables worth splitting by columns
"""

from dreamshard.search.cost_greedy import GreedyCostPlacer
from dreamshard.search.dreamshard_placer import DreamShardPlacer

__all__ = ["DreamShardPlacer", "GreedyCostPlacer"]
