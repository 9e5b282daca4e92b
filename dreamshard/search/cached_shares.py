"""Which tables to keep in host memory, and what share of their rows to cache, where device memory is too small.

Tables are cached step by step, each time the one that costs least per byte that it frees, until the rest fits. So tables
whose lookups hit few rows go first, and no share is smaller than it must be.
"""

import numpy as np

from dreamshard.placed_shards import ShardEntry, shards_of
from dreamshard.search.sharding_costs import ShardingCosts
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

_LEVELS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


def cached_shares(task: PlacementTask, costs: ShardingCosts, filled: float) -> tuple[float | None, ...]:
    """The cached share of each table; None for device memory.

    Args:
        task: to be placed.
        costs: of its shards.
        filled: share of all device memory that tables may take.
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
    chosen = [entries[i].cached_share for i in at.tolist()]
    return tuple(chosen)
