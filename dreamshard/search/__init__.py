"""Search for the best placement by predicted cost.

dreamshard_placer  the trained placer: its starting placements
placement_search   from starting placements to the best one found: local search, column splits
searching_placer   what all placers that search have in common: how much work, and what cut it
roofline_placer    the same search by a preset's roofline, without anything trained
roofline_costs     the roofline in the form that the search asks for
sharded_search     the same among every way to shard
sharding_costs     what that asks of a prediction of costs
roofline_sharding  it by a preset's roofline
network_sharding   it by a trained network
shard_menu         what each table would be on a device, for every way to shard
sharding_mix       which tables are spread over several devices
device_shards      shards that have a device of their own
even_shares        which tables to spread, as if the others were balanced perfectly
kind_climber       tables spread or taken back one by one
cached_shares      what to keep in host memory where device memory is too small
cost_greedy        greedy on the cost network
parts              the parts of a trained placer that place by themselves, by name
local_search       climbs from several placements within a budget
budget             how much a search may do, counted in work; a limit of time only cuts it
hill_climber       moves and swaps off the critical devices
background         shards that stay where they are while others are placed
column_splits      tables worth splitting by columns
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
