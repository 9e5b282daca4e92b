"""What each table of a task would be on a device, for every way to shard that it may take beside whole and by columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dreamshard.cost_model.evaluator import Array, Indices
from dreamshard.legality import allowed_devices
from dreamshard.placed_shards import GRADIENT_BYTES, ShardEntry, shards_of
from dreamshard.search.sharding_costs import CollectiveLoad, ShardingCosts
from dreamshard.sharding import ON_ONE_HOST, ShardingType, even_columns, most_ranges
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
        possible: `[T, K]` by `SPREADS`: what the constraints allow.
        allowed: `[T, K]` those that may pay; the others are for tables that have no other way.
        hosts: `[T, H]` hosts of which a table may use every device.
        latents: `[T, K, L]` of the shard on one device; of one range of columns where it is grid-sharded.
        device_bytes: `[T, K]` of it.
        ranges: `[T]` ranges of columns where a table is grid-sharded.
        shares: cached share of each table; None for device memory.
    """

    task: PlacementTask
    costs: ShardingCosts
    devices_per_host: int
    possible: NDArray[np.bool_]
    allowed: NDArray[np.bool_]
    hosts: NDArray[np.bool_]
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
        on_hosts = _hosts(task, per_host)
        possible = _possible(task, on_hosts, shares)
        allowed = possible & _sensible(task, per_host)
        ranges = _ranges(task, hosts)
        entries, where = [], []
        for t, k in zip(*(each.tolist() for each in np.nonzero(possible)), strict=True):
            blocks = {DATA_PARALLEL: 1, ROW_WISE: task.num_devices}.get(k, per_host)
            start, end = even_columns(dims[t], int(ranges[t]))[-1] if k == GRID else (0, dims[t])
            share = None if k == DATA_PARALLEL else shares[t]
            entries.append(ShardEntry(t, 0, SPREADS[k], 0, -(-rows[t] // blocks), start, end, share))
            where.append((t, k))
        shards = shards_of(task, entries, per_host)
        held = costs.shard_latents(shards).float().numpy()
        latents = np.zeros((len(rows), len(SPREADS), held.shape[1]), np.float32)
        device_bytes = np.zeros((len(rows), len(SPREADS)), np.int64)
        if where:
            index = tuple(np.array(where).T)
            latents[index], device_bytes[index] = held, shards.device_bytes.numpy()
        return cls(task, costs, per_host, possible, allowed, on_hosts, latents, device_bytes, ranges, tuple(shares))

    @property
    def num_hosts(self) -> int:
        """The last of them may have fewer devices."""
        return -(-self.task.num_devices // self.devices_per_host)

    @cached_property
    def apart(self) -> tuple[Indices, ...]:
        """Numbers of the tables of each group of which no two share a device."""
        numbers: dict[str, list[int]] = {}
        for t, name in enumerate(map(parent_name, self.task.tables.names) if self.task.constraints.apart else ()):
            numbers.setdefault(name, []).append(t)
        return tuple(
            np.array([t for name in sorted(group) for t in numbers.get(name, [])], np.int64)
            for group in self.task.constraints.apart
        )

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


def _hosts(task: PlacementTask, per_host: int) -> NDArray[np.bool_]:
    """`[T, H]` hosts of which each table may use every device; none where hosts differ in size."""
    devices = allowed_devices(task).numpy()
    if task.num_devices % per_host:
        return np.zeros((len(task.tables), -(-task.num_devices // per_host)), np.bool_)
    result: NDArray[np.bool_] = np.logical_and.reduce(devices.reshape(len(task.tables), -1, per_host), axis=2)
    return result


def _ranges(task: PlacementTask, hosts: int) -> Indices:
    """`[T]` ranges of columns where a table is grid-sharded: one per host, none too narrow."""
    narrowest = task.constraints.narrowest_columns_of
    names = map(parent_name, task.tables.names)
    return np.array(
        [
            min(hosts, most_ranges(dim, max(_NARROWEST_RANGE, narrowest.get(name, 0))))
            for name, dim in zip(names, task.tables.dim.tolist(), strict=True)
        ]
    )


def _possible(task: PlacementTask, on_hosts: NDArray[np.bool_], shares: Sequence[float | None]) -> NDArray[np.bool_]:
    """`[T, K]` by constraints: tables that are to be together are whole, and cached ones are not data-parallel."""
    constraints = task.constraints
    together = frozenset().union(*constraints.together)
    everywhere, on_host = allowed_devices(task).all(dim=1).tolist(), np.logical_or.reduce(on_hosts, axis=1).tolist()
    possible = np.zeros((len(shares), len(SPREADS)), np.bool_)
    for t, name in enumerate(map(parent_name, task.tables.names)):
        types = constraints.sharding_types_for(name)
        for k, kind in enumerate(SPREADS):
            has_devices = on_host[t] if kind in ON_ONE_HOST else everywhere[t]
            is_cached_copy = k == DATA_PARALLEL and shares[t] is not None
            possible[t, k] = kind in types and has_devices and name not in together and not is_cached_copy
    return possible


def _sensible(task: PlacementTask, per_host: int) -> NDArray[np.bool_]:
    """`[T, K]` what may pay.

    Blocks of rows are not tiny, and rows are spread over hosts only where there are several. Tables that are to be apart are
    not spread, since they would bar the others, but may be data-parallel.
    """
    constraints, num_devices = task.constraints, task.num_devices
    apart = frozenset().union(*constraints.apart)
    rows, dims = task.tables.rows.tolist(), task.tables.dim.tolist()
    sensible = np.zeros((len(rows), len(SPREADS)), np.bool_)
    for t, name in enumerate(map(parent_name, task.tables.names)):
        only_way = set(constraints.sharding_types_for(name)) <= set(ON_ONE_HOST)
        for k, kind in enumerate(SPREADS):
            blocks = {DATA_PARALLEL: 1, ROW_WISE: num_devices}.get(k, per_host)
            sensible[t, k] = (
                num_devices > 1
                and (k == DATA_PARALLEL or (name not in apart and rows[t] >= _LEAST_ROWS * blocks))
                and (kind not in ON_ONE_HOST or num_devices > per_host or only_way)
                and (k != GRID or only_way or dims[t] >= 2 * _NARROWEST_RANGE)
            )
    return sensible
