"""Constraints on a placement besides the devices' memory, and the ones that no placement meets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import scipy

from dreamshard.placement import ON_EVERY_DEVICE, ON_ONE_DEVICE, SHARDING_TYPES, ShardingType, most_ranges


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Constraints on a placement. Tables are named as in the task; a constraint holds for all of a table's shards.

    Attributes:
        sharding_types: ways to shard that tables may take.
        sharding_types_of: the same for single tables, instead.
        caching: whether tables may be in host memory with a cache on the device if device memory is too small.
        cached_share_of: share of the rows to cache of single tables, which must be in host memory.
        never_cached: tables that must be in device memory, although `caching` allows the others to be in host memory.
        narrowest_columns_of: the fewest columns of a shard of single tables.
        pinned: the devices that may hold a table; a table pinned to one device is whole there.
        excluded: devices that may not hold a table.
        excluded_devices: devices that hold no table at all; data-parallel and row-wise need all devices, so they are out.
        together: groups of tables, each whole, that share a device.
        apart: groups of tables of which no two share a device.
        memory_bytes_of: room for tables on single devices, instead of the task's.
        reserve_bytes: of each device's room, kept free for dense parameters and activations.
    """

    sharding_types: tuple[ShardingType, ...] = ON_ONE_DEVICE
    sharding_types_of: Mapping[str, tuple[ShardingType, ...]] = field(default_factory=dict)
    caching: bool = False
    cached_share_of: Mapping[str, float] = field(default_factory=dict)
    never_cached: frozenset[str] = frozenset()
    narrowest_columns_of: Mapping[str, int] = field(default_factory=dict)
    pinned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    excluded: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    excluded_devices: tuple[int, ...] = ()
    together: tuple[frozenset[str], ...] = ()
    apart: tuple[frozenset[str], ...] = ()
    memory_bytes_of: Mapping[int, int] = field(default_factory=dict)
    reserve_bytes: int = 0

    def __post_init__(self) -> None:
        for types in (self.sharding_types, *self.sharding_types_of.values()):
            if not types or set(types) - set(SHARDING_TYPES):
                raise ValueError(
                    f"{list(types)} are not ways to shard a table; choose from {', '.join(SHARDING_TYPES)}"
                )
        if both := sorted(self.never_cached & set(self.cached_share_of)):
            raise ValueError(f"tables {both[:5]} are to be cached and never to be cached; drop one")

    def may_be_cached(self, table: str) -> bool:
        """Whether a table may be in host memory."""
        return table in self.cached_share_of or (self.caching and table not in self.never_cached)

    def sharding_types_for(self, table: str) -> tuple[ShardingType, ...]:
        """Ways to shard that a table may take."""
        return self.sharding_types_of.get(table, self.sharding_types)

    def devices_for(self, table: str, num_devices: int) -> frozenset[int]:
        """Devices that may hold a table."""
        devices = set(self.pinned.get(table, range(num_devices)))
        return frozenset(devices - set(self.excluded.get(table, ())) - set(self.excluded_devices))

    def tables_named(self) -> frozenset[str]:
        """Every table that a constraint names."""
        groups = frozenset().union(*self.together, *self.apart)
        by_table = (self.sharding_types_of, self.cached_share_of, self.narrowest_columns_of, self.pinned, self.excluded)
        return groups.union(self.never_cached, *by_table)

    @property
    def all_sharding_types(self) -> frozenset[ShardingType]:
        """Ways to shard that any table may take."""
        return frozenset(self.sharding_types).union(*self.sharding_types_of.values())

    @property
    def places_freely(self) -> bool:
        """Whether tables may go to any device that has room, and all devices have the same."""
        places = (self.pinned, self.excluded, self.excluded_devices, self.together, self.apart, self.memory_bytes_of)
        return not any(places) and not self.reserve_bytes

    def contradiction(self, tables: Sequence[str], num_devices: int, dims: Mapping[str, int] | None = None) -> str:
        """Why no placement meets the constraints, whatever the memory, in one sentence; empty if nothing speaks against it.

        Args:
            tables: names, without column shards; constraints on other tables do not count.
            num_devices: `D`.
            dims: columns of tables that are not column shards of others, to check that they can be split.
        """
        return next(_contradictions(self, tables, num_devices, dims or {}), "")


UNCONSTRAINED = Constraints()
"""Whole tables and column shards, on any device that has room."""

ANY_SHARDING = Constraints(sharding_types=SHARDING_TYPES)
"""Every way to shard, in device memory."""


def _contradictions(
    constraints: Constraints, tables: Sequence[str], num_devices: int, dims: Mapping[str, int]
) -> Iterator[str]:
    yield from _missing_devices(constraints, num_devices)
    if len(set(constraints.excluded_devices)) == num_devices:
        yield f"all {num_devices} devices are excluded, so no table has a place"
    allowed = {name: constraints.devices_for(name, num_devices) for name in dict.fromkeys(tables)}
    for name, devices in allowed.items():
        pins = sorted(constraints.pinned.get(name, range(num_devices)))
        types = constraints.sharding_types_for(name)
        ways = " or ".join(types)
        if not devices:
            yield f"table {name!r} is pinned to devices {pins}, but all of them are excluded"
        if len(devices) < num_devices and set(types) <= set(ON_EVERY_DEVICE):
            yield f"table {name!r} may only be sharded {ways}, which needs all {num_devices} devices, not {len(devices)}"
        if len(devices) == 1 < num_devices and not set(types) & set(ON_ONE_DEVICE):
            yield f"table {name!r} may use one device only, but may only be sharded {ways}"
    yield from _group_contradictions(constraints, allowed)
    for name, dim in dims.items():
        narrowest = constraints.narrowest_columns_of.get(name, 0)
        if set(constraints.sharding_types_for(name)) == {"column_wise"} and most_ranges(dim, narrowest) < 2:
            yield (
                f"table {name!r} may only be sharded column_wise, but its {dim} columns do not make two shards of at least "
                f"{max(narrowest, 4)}, a multiple of 4; allow table_wise for it"
            )


def _missing_devices(constraints: Constraints, num_devices: int) -> Iterator[str]:
    named = {
        "excluded devices": constraints.excluded_devices,
        "memory of single devices": tuple(constraints.memory_bytes_of),
        **{f"the pin of table {name!r}": devices for name, devices in constraints.pinned.items()},
        **{f"the devices that table {name!r} may not use": devices for name, devices in constraints.excluded.items()},
    }
    for what, devices in named.items():
        for device in devices:
            if not 0 <= device < num_devices:
                yield f"{what}: there is no device {device}, only devices 0..{num_devices - 1}"


def _group_contradictions(constraints: Constraints, allowed: Mapping[str, frozenset[int]]) -> Iterator[str]:
    together = _joined(constraints.together)
    for group in together:
        present = sorted(group & allowed.keys())
        if len(present) > 1 and not frozenset.intersection(*(allowed[name] for name in present)):
            yield f"tables {present} are to share a device, but there is none that all of them may use"
        for name in present:
            types = constraints.sharding_types_for(name)
            if len(present) > 1 and "table_wise" not in types:
                yield f"table {name!r} is to share a device with others, whole, but may only be sharded {' or '.join(types)}"
    for group in constraints.apart:
        for other in together:
            if len(both := sorted(group & other & allowed.keys())) > 1:
                yield f"tables {both} are to be apart, but also to share a device"
        present = sorted(group & allowed.keys())
        devices = sorted(frozenset().union(*(allowed[name] for name in present)))
        fits = scipy.sparse.csr_array(
            [[device in allowed[name] for device in devices] for name in present] or [[False]]
        )
        if (scipy.sparse.csgraph.maximum_bipartite_matching(fits) >= 0).sum() < len(present):
            yield f"tables {present} are to be on devices of their own, but devices {devices} are not enough for all of them"


def _joined(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The groups, those that share a table made one."""
    result: list[frozenset[str]] = []
    for group in groups:
        touching = [other for other in result if other & group]
        result = [other for other in result if not other & group]
        result.append(group.union(*touching))
    return result
