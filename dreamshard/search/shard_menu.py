"""What each table of a task would be on a device, for every way to shard that it may take beside whole and by columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.legality import allowed_devices
from dreamshard.placed_shards import GRADIENT_BYTES, ShardEntry, shards_of
from dreamshard.search.sharding_costs import CollectiveLoad, ShardingCosts
from dreamshard.sharding import ON_ONE_HOST, ShardingType, even_columns, row_blocks
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

SPREADS: tuple[ShardingType, ...] = ("row_wise", "data_parallel", "table_row_wise", "grid_shard")
"""Ways to shard a table over several devices at once; the second axis of a menu."""
ROW_WISE, DATA_PARALLEL, TABLE_ROW_WISE, GRID = range(len(SPREADS))

_NARROWEST_RANGE = 16  # columns of a range of a grid-sharded table
_LEAST_ROWS = 2  # per device of a table whose rows are spread


@dataclass(frozen=True)
class ShardMenu:
    """The shards of tables by every way to shard over several devices; one shard stands for those of all devices.

    Attributes:
        task: whose tables these are.
        costs: of their shards.
        devices_per_host: devices that share a host.
        allowed: `[T, K]` by `SPREADS`.
        latents: `[T, K, L]` of the shard on one device; of one range of columns where it is grid-sharded.
        device_bytes: `[T, K]` of it.
        ranges: `[T]` ranges of columns where a table is grid-sharded.
        shares: cached share of each table; None for device memory.
    """

    task: PlacementTask
    costs: ShardingCosts
    devices_per_host: int
    allowed: NDArray[np.bool_]
    latents: Array
    device_bytes: Indices
    ranges: Indices
    shares: tuple[float | None, ...]

    @classmethod
    def of(
        cls, task: PlacementTask, costs: ShardingCosts, devices_per_host: int, shares: Sequence[float | None]
    ) -> "ShardMenu":
        """The menu of all tables, whose cached shares are decided already."""
        per_host, hosts = devices_per_host, -(-task.num_devices // devices_per_host)
        rows, dims = task.tables.rows.tolist(), task.tables.dim.tolist()
        allowed = _allowed(task, per_host, shares)
        ranges = np.array([max(min(hosts, dim // _NARROWEST_RANGE), 1) for dim in dims])
        entries, where = [], []
        for t, k in zip(*(each.tolist() for each in np.nonzero(allowed)), strict=True):
            blocks = {DATA_PARALLEL: 1, ROW_WISE: task.num_devices}.get(k, per_host)
            start, end = even_columns(dims[t], int(ranges[t]))[-1] if k == GRID else (0, dims[t])
            share = None if k == DATA_PARALLEL else shares[t]
            entries.append(ShardEntry(t, 0, SPREADS[k], *row_blocks(rows[t], blocks)[0], start, end, share))
            where.append((t, k))
        shards = shards_of(task, entries, per_host)
        held = costs.shard_latents(shards).float().numpy()
        latents = np.zeros((len(rows), len(SPREADS), held.shape[1]), np.float32)
        device_bytes = np.zeros((len(rows), len(SPREADS)), np.int64)
        if where:
            index = tuple(np.array(where).T)
            latents[index], device_bytes[index] = held, shards.device_bytes.numpy()
        return cls(task, costs, per_host, allowed, latents, device_bytes, ranges, tuple(shares))

    @property
    def num_hosts(self) -> int:
        """The last of them may have fewer devices."""
        return -(-self.task.num_devices // self.devices_per_host)

    def carries(self, tables: Indices, kind: int) -> CollectiveLoad:
        """What the collectives of each of these tables alone carry; on the first host, where they are on one."""
        load = CollectiveLoad.none(len(tables), self.num_hosts)
        dims = self.task.tables.dim.numpy()[tables]
        if kind == ROW_WISE:
            load.row_dims[:] = dims
        elif kind == DATA_PARALLEL:
            load.all_reduce_bytes[:] = GRADIENT_BYTES * dims * self.task.tables.rows.numpy()[tables]
        else:
            load.host_dims[:, 0] = dims
        return load

    def range_dims(self, table: int, kind: int) -> list[int]:
        """Columns of each range of a table on hosts."""
        dim = int(self.task.tables.dim[table])
        return [end - start for start, end in even_columns(dim, int(self.ranges[table]) if kind == GRID else 1)]


def _allowed(task: PlacementTask, per_host: int, shares: Sequence[float | None]) -> NDArray[np.bool_]:
    """`[T, K]` by constraints and by sense.

    Tables that are to be together are whole, and those to be apart are not spread, but may be data-parallel. Rows are spread
    over hosts only where there are several and all are full.
    """
    constraints, num_devices = task.constraints, task.num_devices
    names = [parent_name(name) for name in task.tables.names]
    together, apart = frozenset().union(*constraints.together), frozenset().union(*constraints.apart)
    full_hosts = num_devices % per_host == 0 and num_devices > per_host
    everywhere = allowed_devices(task).all(dim=1).tolist()
    rows, dims = task.tables.rows.tolist(), task.tables.dim.tolist()
    allowed = np.zeros((len(names), len(SPREADS)), np.bool_)
    for t, name in enumerate(names):
        types = constraints.sharding_types_for(name)
        for k, kind in enumerate(SPREADS):
            blocks = {DATA_PARALLEL: 1, ROW_WISE: num_devices}.get(k, per_host)
            only_way = set(types) <= set(ON_ONE_HOST) and num_devices % per_host == 0
            allowed[t, k] = (
                num_devices > 1
                and kind in types
                and everywhere[t]
                and name not in together
                and (k == DATA_PARALLEL or (name not in apart and rows[t] >= _LEAST_ROWS * blocks))
                and (k != DATA_PARALLEL or shares[t] is None)
                and (kind not in ON_ONE_HOST or full_hosts or only_way)
                and (k != GRID or only_way or dims[t] >= 2 * _NARROWEST_RANGE)
            )
    return allowed
