"""Whether a placement fits the devices' memory and respects a task's constraints, and if not, why."""

from collections.abc import Iterable, Iterator

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
    return mismatch(task, placement) or next(_violations(task, placement, Shards.of(task, placement)), "")


def allowed_devices(task: PlacementTask) -> Bool[Tensor, "T D"]:
    """Devices that may hold shards of each table, by its pins and exclusions alone."""
    constraints = task.constraints
    allowed = torch.ones(len(task.tables), task.num_devices, dtype=torch.bool)
    named = constraints.pinned.keys() | constraints.excluded.keys()
    for t, name in enumerate(map(parent_name, task.tables.names) if named else ()):
        if name in constraints.pinned:
            allowed[t] = False
            allowed[t, list(constraints.pinned[name])] = True
        if name in constraints.excluded:
            allowed[t, list(constraints.excluded[name])] = False
    allowed[:, list(constraints.excluded_devices)] = False
    return allowed


def _violations(task: PlacementTask, placement: Placement, shards: Shards) -> Iterator[str]:
    constraints, names = task.constraints, [parent_name(name) for name in task.tables.names]
    held, room = shards.memory_bytes(), task.capacity_bytes  # [D]
    if bool((held > room).any()):
        fullest = int((held - room).argmax())
        yield f"device {fullest} would hold {gib(int(held[fullest]))} of tables, but has {gib(int(room[fullest]))} for them"
    for name, sharding in zip(names, placement.tables, strict=True):
        types = constraints.sharding_types_for(name)
        if sharding.sharding_type not in types:
            yield f"table {name!r} is sharded {sharding.sharding_type}, but may be {' or '.join(types)}"
        must_cache = name in constraints.cached_share_of
        is_cached = sharding.cached_share is not None
        if (must_cache and not is_cached) or (is_cached and not constraints.may_be_cached(name)):
            where = "host" if is_cached else "device"
            yield f"table {name!r} is in {where} memory, which its constraints do not allow"
        narrowest = min((end - start for start, end in sharding.columns), default=0)
        least = constraints.narrowest_columns_of.get(name, 0)
        if len(sharding.columns) > 1 and narrowest < least:
            yield f"table {name!r} has a shard of {narrowest} columns, fewer than {least}"
    allowed = allowed_devices(task)
    wrong = ~allowed[shards.table, shards.device]
    if bool(wrong.any()):
        s = int(wrong.nonzero()[0])
        yield f"table {names[int(shards.table[s])]!r} has a shard on device {int(shards.device[s])}, which it may not use"
    devices_of = _devices_of(names, shards)
    for group in constraints.together:
        places = [devices_of[name] for name in sorted(group) if name in devices_of]
        if places and (any(place != places[0] for place in places) or len(places[0]) > 1):
            yield f"tables {sorted(group)} do not share one device"
    for group in constraints.apart:
        seen: set[int] = set()
        for name in sorted(group):
            if seen & devices_of.get(name, set()):
                yield f"tables {sorted(group)} are to be apart, but share a device"
                break
            seen |= devices_of.get(name, set())


def _devices_of(names: Iterable[str], shards: Shards) -> dict[str, set[int]]:
    """Devices of each table's shards; none of a data-parallel one, which has no place."""
    spread = shards.is_any("data_parallel")
    by_number = list(names)
    devices: dict[str, set[int]] = {name: set() for name in by_number}
    for t, device, copied in zip(shards.table.tolist(), shards.device.tolist(), spread.tolist(), strict=True):
        if not copied:
            devices[by_number[t]].add(device)
    return devices
