"""Which tables to keep in host memory, and what share of their rows to cache, where device memory is too small.

Tables are cached step by step, each time the one that costs least per byte that it frees, until the rest fits. So tables
whose lookups hit few rows go first. A step may free more than is needed; the room that is left can go to the caches that
gain most per byte, or stay for copies and rows of other tables.
"""

from dataclasses import replace

import numpy as np

from dreamshard.legality import violation
from dreamshard.placed_shards import ShardEntry, shards_of
from dreamshard.search.sharding_costs import ShardingCosts
from dreamshard.sharding import ShardedPlacement
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

_FILLED_CACHES = 32  # tables whose caches are made larger at the end
_LEVELS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def cached_shares(task: PlacementTask, costs: ShardingCosts, filled: float, *, fill: bool) -> tuple[float | None, ...]:
    """The cached share of each table; None for device memory.

    Args:
        task: to be placed.
        costs: of its shards.
        filled: share of all device memory that tables may take.
        fill: whether caches get the room that is left.
    """
    constraints = task.constraints
    names = [parent_name(name) for name in task.tables.names]
    shares = [constraints.cached_share_of.get(name) for name in names]
    room = filled * float(task.capacity_bytes.double().sum())
    may = [constraints.may_be_cached(name) and shares[t] is None for t, name in enumerate(names)]
    rows, dims = task.tables.rows.tolist(), task.tables.dim.tolist()
    levels = [[shares[t]] if not may[t] else [None, *_LEVELS] for t in range(len(names))]
    sizes = task.table_bytes.tolist()
    fixed = [share for share in shares if share is not None]
    if not fixed and sum(sizes) <= room:
        return tuple(shares)
    entries = [
        ShardEntry(t, 0, "table_wise", 0, rows[t], 0, dims[t], share) for t, each in enumerate(levels) for share in each
    ]
    shards = shards_of(task, entries, task.num_devices)
    forward, backward, _ = costs.evaluator().compute(costs.shard_latents(shards).float().numpy())
    cost_ms, size = forward + backward, shards.device_bytes.numpy()
    first = np.concatenate([[0], np.cumsum([len(each) for each in levels])])
    at = first[:-1].copy()
    total = float(size[at].sum())
    while total > room:
        best, least = -1, np.inf
        for t in range(len(names)):
            for ahead in range(at[t] + 1, first[t + 1]):
                freed = size[at[t]] - size[ahead]
                if freed > 0 and (price := max(cost_ms[ahead] - cost_ms[at[t]], 0.0) / freed) < least:
                    best, least, target = t, price, ahead
        if best < 0:
            break  # nothing left to cache; what does not fit is found out when tables are placed
        total -= float(size[at[best]] - size[target])
        at[best] = target
    while fill and total <= room:
        best, most = -1, 0.0
        for t in range(len(names)):
            for behind in range(first[t], at[t]):
                added = size[behind] - size[at[t]]
                gain = (cost_ms[at[t]] - cost_ms[behind]) / max(added, 1.0)
                if added <= room - total and gain > most:
                    best, most, target = t, gain, behind
        if best < 0:
            break
        total += float(size[target] - size[at[best]])
        at[best] = target
    chosen = [entries[i].cached_share for i in at.tolist()]
    return tuple(chosen)


def with_fuller_caches(task: PlacementTask, costs: ShardingCosts, placement: ShardedPlacement) -> ShardedPlacement:
    """The placement with caches as large as the room that is left on their devices allows, where that lowers the cost.

    Tables with most to fetch from host memory come first; shares that the task's constraints name stay.
    """
    named = task.constraints.cached_share_of
    cached = [
        t
        for t, sharding in enumerate(placement.tables)
        if sharding.cached_share is not None and parent_name(task.tables.names[t]) not in named
    ]
    best_ms = float(costs.predict_sharded(task, placement).overall_ms())
    for t in sorted(cached, key=lambda t: -int(task.tables.unique_rows[t]))[:_FILLED_CACHES]:
        sharding = placement.tables[t]
        for share in _LEVELS:
            if share <= (sharding.cached_share or 0.0):
                break
            fuller = placement.with_table(t, replace(sharding, cached_share=share))
            if violation(task, fuller):
                continue
            cost_ms = float(costs.predict_sharded(task, fuller).overall_ms())
            if cost_ms <= best_ms:
                placement, best_ms = fuller, cost_ms
            break
    return placement
