"""Search for the best placement by predicted cost.

dreamshard_placer  the trained placer: its starting placements
roofline_placer    the same search by a preset's roofline, without anything trained
searching_placer   what both have in common
search             from starting placements to the best one found, level by level of how tables may be sharded
annealing          the compiled search among the options of every table
options            the ways in which each table may be sharded, as arrays
search_costs       what a search asks of a prediction of costs
network_costs      it by a trained network
roofline_costs     it by a preset's roofline
cost_greedy        greedy on the cost network
parts              the parts of a trained placer that place by themselves, by name
column_splits      how many column shards memory and constraints ask for
column_packing     an exact search for column shards that fit
"""

from dreamshard.search.cost_greedy import GreedyCostPlacer
from dreamshard.search.dreamshard_placer import DreamShardPlacer, Inference
from dreamshard.search.parts import PARTS, part_of
from dreamshard.search.roofline_placer import RooflinePlacer
from dreamshard.search.searching_placer import SearchingPlacer

__all__ = [
    "PARTS",
    "DreamShardPlacer",
    "GreedyCostPlacer",
    "Inference",
    "RooflinePlacer",
    "SearchingPlacer",
    "part_of",
]
