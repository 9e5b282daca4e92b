"""Which tables must be spread, because constraints or memory leave no other way, and mixes to try where places are scarce."""

from collections.abc import Iterator

import numpy as np

from dreamshard.cost_model.evaluator import Indices
from dreamshard.formatting import gib
from dreamshard.legality import allowed_devices
from dreamshard.placer import NoPlacementError
from dreamshard.search.device_shards import DeviceShards
from dreamshard.search.shard_menu import DATA_PARALLEL, ROW_WISE, SPREADS, TABLE_ROW_WISE, ShardMenu
from dreamshard.search.sharding_mix import ON_DEVICES, ShardingMix
from dreamshard.sharding import ON_ONE_DEVICE, ON_ONE_HOST
from dreamshard.tables import parent_name


def forced_mix(menu: ShardMenu, shards: DeviceShards) -> ShardingMix:
    """With the tables spread that may not be on single devices, or have no room there: each as costs least alone.

    Raises:
        NoPlacementError: the constraints leave a table no way at all.
    """
    task, mix = menu.task, ShardingMix.nothing_spread(menu)
    room = int(task.capacity_bytes.max())
    largest = np.zeros(len(task.tables), np.int64)
    np.maximum.at(largest, shards.table, shards.device_bytes)
    for t, name in enumerate(map(parent_name, task.tables.names)):
        types = set(task.constraints.sharding_types_for(name)) & set(ON_ONE_DEVICE)
        if largest[t] <= room and shards.may_hold(t):
            continue
        able = [k for k in np.flatnonzero(menu.possible[t]).tolist() if menu.device_bytes[t, k] <= room]
        able = [k for k in able if menu.allowed[t, k]] or able
        if not able and not types:
            raise _no_way(menu, t)
        if not able:
            continue  # it may still be split by columns; what cannot be is found out when it is placed
        costs = []
        for kind in able:
            table = np.array([t])
            alone = menu.costs.even_ms(menu.latents[table, kind])
            costs.append(float(alone[0] + menu.costs.other_ms(menu.carries(table, kind)).max()))
        mix = mix.with_tables(np.array([t]), able[int(np.argmin(costs))])
    return _with_copies(mix)


def ever_more(forced: ShardingMix, whole_bytes: Indices) -> list[ShardingMix]:
    """The forced mix, and with more and more of the largest tables spread by rows.

    Args:
        forced: the tables that are spread in it stay so.
        whole_bytes: `[T]` of each table on single devices.
    """
    menu = forced.menu
    result, tables = [forced], np.argsort(-whole_bytes, kind="stable")
    for kind in (ROW_WISE, TABLE_ROW_WISE):
        able = [t for t in tables.tolist() if menu.allowed[t, kind] and forced.kind[t] == ON_DEVICES]
        count = 1
        while able and count < 2 * len(able):
            result.append(forced.with_tables(np.array(able[:count]), kind))
            count *= 2
    return result


def drawn_mixes(forced: ShardingMix, shards: DeviceShards, count: int) -> Iterator[ShardingMix]:
    """Mixes in which the tables that take places from others are spread at random: forced ones, and those to be apart."""
    menu, generator = forced.menu, np.random.default_rng(0)
    chosen = set(np.flatnonzero(forced.kind != ON_DEVICES).tolist()).union(*(group.tolist() for group in menu.apart))
    options = {
        t: [*np.flatnonzero(menu.possible[t]).tolist(), *([ON_DEVICES] if shards.may_hold(t) else [])]
        for t in sorted(chosen)
    }
    for _ in range(count if any(len(each) > 1 for each in options.values()) or forced.hosts else 0):
        mix = ShardingMix.nothing_spread(menu)
        for t, kinds in options.items():
            kind = int(generator.choice(kinds)) if kinds else ON_DEVICES
            hosts: tuple[int, ...] = ()
            if kind != ON_DEVICES and SPREADS[kind] in ON_ONE_HOST:
                able, ranges = np.flatnonzero(menu.hosts[t]), len(menu.range_dims(t, kind))
                hosts = tuple(generator.choice(able, ranges, replace=len(able) < ranges).tolist())
            mix = mix.with_table(t, kind, hosts)
        mix = _with_copies(mix)
        if mix.is_apart:
            yield mix


def _with_copies(mix: ShardingMix) -> ShardingMix:
    """With the tables data-parallel that would have no device apart from spread ones."""
    barred = mix.barred()
    if barred is None:
        return mix
    nowhere = ~(allowed_devices(mix.menu.task).numpy() & ~barred).any(axis=1) & (mix.kind == ON_DEVICES)
    return mix.with_tables(np.flatnonzero(nowhere & mix.menu.possible[:, DATA_PARALLEL]), DATA_PARALLEL)


def _no_way(menu: ShardMenu, table: int) -> NoPlacementError:
    """The error that a table may only be spread, and cannot be."""
    task = menu.task
    name, room = parent_name(task.tables.names[table]), int(task.capacity_bytes.max())
    types = task.constraints.sharding_types_for(name)
    devices = allowed_devices(task)[table].nonzero().flatten().tolist()
    if menu.possible[table].any():
        least = int(menu.device_bytes[table, menu.possible[table]].min())
        reason = f"its smallest shard takes {gib(least)}, more than the {gib(room)} of a device"
    elif menu.shares[table] is not None and set(types) == {"data_parallel"}:
        reason = "it is to be in host memory with a cache, and data-parallel copies are not"
    elif set(types) & set(ON_ONE_HOST) and task.num_devices % menu.devices_per_host:
        reason = f"the {task.num_devices} devices do not fill hosts of {menu.devices_per_host}"
    else:
        reason = (
            f"it may use only devices {devices} of {task.num_devices}, which do not include all of a host of "
            f"{menu.devices_per_host}"
        )
    return NoPlacementError(
        f"table {name!r} may only be sharded {' or '.join(types)}, but {reason}; allow other ways to shard it, or loosen the "
        "constraints on it"
    )
