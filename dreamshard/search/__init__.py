"""Search for the best placement by predicted cost.

placers    the search by a trained network or a preset, greedy on a network, and a policy alone
search     from starting placements to the best one, for each combination of sharding types
annealing  the compiled search among the options of every table
starting   greedy placements, and how tables are sharded if devices could be even
options    how each table may be sharded, as arrays
costs      the cost model: a trained network, or a preset's roofline
packing    where tables may be, whether they fit at all, and heuristics
"""

from dreamshard.search.placers import (
    MOVES_PER_MS,
    PARTS,
    DreamShardPlacer,
    GreedyCostPlacer,
    RooflinePlacer,
    SearchingPlacer,
    part_of,
)

__all__ = [
    "MOVES_PER_MS",
    "PARTS",
    "DreamShardPlacer",
    "GreedyCostPlacer",
    "RooflinePlacer",
    "SearchingPlacer",
    "part_of",
]
