"""dreamshard: learn what embedding tables cost, and place them on devices. `docs/architecture.md` lists the rooms.

Letters of dimensions, in every signature: B batch (placements or episodes), T tables, D devices, F features, L latent,
N lookups or shards, P distinct tables of a data set, S samples or starts.
Costs are in milliseconds (`_ms`), memory in bytes (`_bytes`).
"""

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement, TableSharding
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.plan import Plan, make_plan, read_plan
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import read_tables

__all__ = [
    "ANY_SHARDING",
    "Constraints",
    "CostSample",
    "DeviceCosts",
    "NoPlacementError",
    "Placement",
    "PlacementTask",
    "Placer",
    "Plan",
    "TableSharding",
    "Tables",
    "make_plan",
    "read_plan",
    "read_tables",
]
