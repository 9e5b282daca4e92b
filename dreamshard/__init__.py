"""dreamshard: learn what embedding tables cost, and place them on devices. Each room uses only the rooms above it.

    files/                 atomic writing, locks, content of other people
    tables, workloads/     `Tables` and their lookups, from files, published lists or generators
    tasks, placement       a `PlacementTask`: tables, devices, memory; a `Placement`: how each table is sharded, and where
    costs, placer, plan    `CostSample`: measured milliseconds per device; the `Placer` protocol; the plan for the trainer
    testbeds/, baselines   where costs come from: real ranks, one device, or a roofline; rules of thumb
    cost_model/            features of tables, and networks that predict a placement's cost
    policy/                the estimated MDP, and a policy that places table after table in it
    search/                policy + cost network -> the best placement within a budget of work
    training, evaluation   Algorithm 1: measure, fit, improve; paired comparisons of placers
    rivals/                published rivals, behind the same interface
    recipes                complete configurations by name

Letters of dimensions, in every signature: B batch (placements or episodes), T tables, D devices, F features, L latent,
M members of an ensemble, N lookups or shards, P distinct tables of a data set, S samples or starts. Costs are in
milliseconds (`_ms`), memory in bytes (`_bytes`).
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
