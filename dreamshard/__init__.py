"""dreamshard: learn what embedding tables cost, and which device should hold which.

    workloads/   a source            -> lookups, and Tables with their statistics
    tasks        Tables              -> PlacementTasks, from disjoint halves of the pool
    testbeds/    task, placement     -> CostSample: milliseconds per device and phase
    features     Tables              -> [T, F], normalised once for the whole pool
    cost_network, train_cost         CostSamples -> a network that predicts a placement's cost
    mdp, rollout, policy_network     the estimated MDP, and a policy that places table after table in it
    training     Algorithm 1: measure what the policy proposes, fit the cost network, improve the policy; again
    search       policy + cost network -> the best placement within a time budget
    baselines    rules of thumb, behind the same interface
    evaluation   placers x tasks on a testbed -> a paired comparison

Letters of dimensions, in every signature: B batch (placements or episodes), T tables, D devices, F features, L latent,
M members of an ensemble, N lookups or shards, P distinct tables of a data set, S samples or starts. Costs are in
milliseconds (`_ms`), memory in bytes (`_bytes`).
"""

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import read_tables

__all__ = ["CostSample", "DeviceCosts", "Placement", "PlacementTask", "Tables", "read_tables"]
