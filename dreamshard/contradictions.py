"""Constraints that no placement meets, whatever the devices' memory: they name devices that do not exist, or contradict."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dreamshard.constraints import Constraints
from dreamshard.placement import ON_EVERY_DEVICE, ON_ONE_DEVICE, most_ranges

NO_DIMS: Mapping[str, int] = {}


def contradiction(
    constraints: Constraints, tables: Sequence[str], num_devices: int, dims: Mapping[str, int] = NO_DIMS
) -> str:
    """Why no placement of these tables meets the constraints, in one sentence; empty where nothing speaks against it.

    Args:
        constraints: may name tables that are not among `tables`, and these do not count.
        tables: names, without those of column shards.
        num_devices: `D`.
        dims: columns of tables that are not column shards of others; without them nothing speaks against splitting those.
    """
    return next(_contradictions(constraints, tables, num_devices), "") or next(_too_narrow(constraints, dims), "")


def joined(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The groups, those that share a table made one."""
    result: list[frozenset[str]] = []
    for group in groups:
        touching = [other for other in result if other & group]
        result = [other for other in result if not other & group]
        result.append(group.union(*touching))
    return result


def _contradictions(constraints: Constraints, tables: Sequence[str], num_devices: int) -> Iterator[str]:
    yield from _missing_devices(constraints, num_devices)
    if len(set(constraints.excluded_devices)) == num_devices:
        yield f"all {num_devices} devices are excluded, so no table has a place"
    allowed = {name: _allowed(constraints, name, num_devices) for name in dict.fromkeys(tables)}
    for name, devices in allowed.items():
        if not devices:
            yield (
                f"table {name!r} is pinned to devices {sorted(constraints.pinned.get(name, range(num_devices)))}, but all of "
                "them are excluded, so it has no place"
            )
        types = constraints.sharding_types_for(name)
        if len(devices) < num_devices and set(types) <= set(ON_EVERY_DEVICE):
            yield (
                f"table {name!r} may only be sharded {' or '.join(types)}, which needs all {num_devices} devices, but it may "
                f"use only {len(devices)}"
            )
        if len(devices) == 1 and num_devices > 1 and not set(types) & set(ON_ONE_DEVICE):
            yield f"table {name!r} may use one device only, but may only be sharded {' or '.join(types)}"
    together = joined(constraints.together)
    yield from _together(constraints, together, allowed)
    yield from _apart(constraints.apart, together, allowed)


def _too_narrow(constraints: Constraints, dims: Mapping[str, int]) -> Iterator[str]:
    for name, dim in dims.items():
        narrowest = constraints.narrowest_columns_of.get(name, 0)
        if set(constraints.sharding_types_for(name)) == {"column_wise"} and most_ranges(dim, narrowest) < 2:
            least = f"at least {narrowest} columns, and " if narrowest else ""
            yield (
                f"table {name!r} may only be sharded column_wise, but its {dim} columns do not make two shards of "
                f"{least}a multiple of 4 each; allow table_wise for it"
            )


def _missing_devices(constraints: Constraints, num_devices: int) -> Iterator[str]:
    named = {
        "excluded devices": constraints.excluded_devices,
        "memory of single devices": tuple(constraints.memory_bytes_of),
        **{f"the pin of table {name!r}": devices for name, devices in constraints.pinned.items()},
        **{f"the devices that table {name!r} may not use": devices for name, devices in constraints.excluded.items()},
    }
    for what, devices in named.items():
        missing = [device for device in devices if not 0 <= device < num_devices]
        if missing:
            yield f"{what}: there is no device {missing[0]}, only devices 0..{num_devices - 1}"


def _allowed(constraints: Constraints, table: str, num_devices: int) -> frozenset[int]:
    """Devices that a table may use."""
    pinned = constraints.pinned.get(table, range(num_devices))
    return frozenset(pinned) - set(constraints.excluded.get(table, ())) - set(constraints.excluded_devices)


def _together(
    constraints: Constraints, groups: Sequence[frozenset[str]], allowed: Mapping[str, frozenset[int]]
) -> Iterator[str]:
    for group in groups:
        present = sorted(group & allowed.keys())
        if len(present) > 1 and not frozenset.intersection(*(allowed[name] for name in present)):
            yield f"tables {present} are to share a device, but there is none that all of them may use"
        for name in present:
            types = constraints.sharding_types_for(name)
            if len(present) > 1 and "table_wise" not in types:
                yield f"table {name!r} is to share a device with others, whole, but may only be sharded {' or '.join(types)}"


def _apart(
    groups: Sequence[frozenset[str]], together: Sequence[frozenset[str]], allowed: Mapping[str, frozenset[int]]
) -> Iterator[str]:
    for group in groups:
        for other in together:
            if len(both := sorted(group & other & allowed.keys())) > 1:
                yield f"tables {both} are to be apart, but also to share a device"
        present = sorted(group & allowed.keys())
        if _places(present, allowed) < len(present):
            devices = sorted(frozenset().union(*(allowed[name] for name in present)))
            yield (
                f"tables {present} are to be on devices of their own, but may only use devices {devices}, which are not "
                "enough for all of them"
            )


def _places(tables: Sequence[str], allowed: Mapping[str, frozenset[int]]) -> int:
    """How many of the tables can have a device of their own: a maximum matching, by augmenting paths."""
    holder: dict[int, str] = {}

    def finds_place(table: str, tried: set[int]) -> bool:
        for device in allowed[table] - tried:
            tried.add(device)
            if device not in holder or finds_place(holder[device], tried):
                holder[device] = table
                return True
        return False

    return sum(finds_place(table, set()) for table in tables)
