"""Whether a placement is legal: made for the task, within the devices' memory and the task's constraints; and if not, why."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from dreamshard.formatting import gib
from dreamshard.placement import Placement
from dreamshard.shards import Shards, mismatch
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask


def violation(task: PlacementTask, placement: Placement) -> str:
    """Why a placement is not legal for the task, in one sentence; empty if it is legal."""
    return mismatch(task, placement) or next(_violations(task, placement), "")


def allowed_devices(task: PlacementTask) -> Bool[Tensor, "T D"]:
    """Devices that may hold shards of each table, by its pins and exclusions alone."""
    constraints, num_devices = task.constraints, task.num_devices
    allowed = torch.ones(len(task.tables), num_devices, dtype=torch.bool)
    allowed[:, list(constraints.excluded_devices)] = False
    named = constraints.pinned.keys() | constraints.excluded.keys()
    for t, name in enumerate(map(parent_name, task.tables.names) if named else ()):
        if name in named:
            allowed[t] = False
            allowed[t, list(constraints.devices_for(name, num_devices))] = True
    return allowed


def _violations(task: PlacementTask, placement: Placement) -> Iterator[str]:
    constraints, shards = task.constraints, Shards.of(task, placement)
    held, room = shards.memory_bytes(), task.capacity_bytes  # [D]
    if bool((held > room).any()):
        fullest = int((held - room).argmax())
        yield f"device {fullest} would hold {gib(int(held[fullest]))} of tables, but has {gib(int(room[fullest]))} for them"
    if (
        not constraints.tables_named()
        and placement.is_by_columns
        and placement.sharding_types <= {*constraints.sharding_types}
    ):
        names = list(task.tables.names)
    else:
        names = [parent_name(name) for name in task.tables.names]
        yield from _violations_of_tables(task, placement, names)
    wrong = ~allowed_devices(task)[shards.table, shards.device]
    if bool(wrong.any()):
        s = int(wrong.nonzero()[0])
        yield f"table {names[int(shards.table[s])]!r} has a shard on device {int(shards.device[s])}, which it may not use"
    devices_of: dict[str, set[int]] = {
        name: set() for name in frozenset().union(*constraints.together, *constraints.apart)
    }
    placed = ~shards.is_any("data_parallel")  # copies have no place
    for t, device in (
        zip(shards.table[placed].tolist(), shards.device[placed].tolist(), strict=True) if devices_of else ()
    ):
        devices_of.get(names[t], set()).add(device)
    for group in constraints.together:
        places = [devices_of[name] for name in sorted(group) if name in names]
        if places and (any(place != places[0] for place in places) or len(places[0]) > 1):
            yield f"tables {sorted(group)} do not share one device"
    for group in constraints.apart:
        if sum(len(devices_of[name]) for name in group) > len(set().union(*(devices_of[name] for name in group))):
            yield f"tables {sorted(group)} are to be apart, but share a device"


def _violations_of_tables(task: PlacementTask, placement: Placement, names: list[str]) -> Iterator[str]:
    constraints = task.constraints
    for name, sharding in zip(names, placement.tables, strict=True):
        types = constraints.sharding_types_for(name)
        if sharding.sharding_type not in types:
            yield f"table {name!r} is sharded {sharding.sharding_type}, but may be {' or '.join(types)}"
        is_cached = sharding.cached_share is not None
        if not constraints.may_be_cached(name) if is_cached else name in constraints.cached_share_of:
            where = "host" if is_cached else "device"
            yield f"table {name!r} is in {where} memory, which its constraints do not allow"
        narrowest = min((end - start for start, end in sharding.columns), default=0)
        least = constraints.narrowest_columns_of.get(name, 0)
        if len(sharding.columns) > 1 and narrowest < least:
            yield f"table {name!r} has a shard of {narrowest} columns, fewer than {least}"
