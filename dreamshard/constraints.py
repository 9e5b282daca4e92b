"""What a placement must respect beside the devices' memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dreamshard.placement import ON_ONE_DEVICE, SHARDING_TYPES, ShardingType


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a placement must respect. Tables are named as in the task; a constraint holds for all of a table's shards.

    Attributes:
        sharding_types: ways to shard that tables may take.
        sharding_types_of: the same for single tables, instead.
        caching: whether tables may be in host memory with a cache on the device, where device memory is too small.
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
            unknown = [each for each in types if each not in SHARDING_TYPES]
            if unknown or not types:
                raise ValueError(
                    f"{list(types)} are not ways to shard a table, so none could be chosen; choose from "
                    f"{', '.join(SHARDING_TYPES)}"
                )

        if both := sorted(self.never_cached & set(self.cached_share_of)):
            raise ValueError(
                f"tables {both[:5]} are to be cached and never to be cached, so no placement could respect both; drop one"
            )

    def may_be_cached(self, table: str) -> bool:
        """Whether a table may be in host memory."""
        return table in self.cached_share_of or (self.caching and table not in self.never_cached)

    def sharding_types_for(self, table: str) -> tuple[ShardingType, ...]:
        """Ways to shard that a table may take."""
        return self.sharding_types_of.get(table, self.sharding_types)

    def tables_named(self) -> frozenset[str]:
        """Every table that a constraint names."""
        groups = frozenset().union(*self.together, *self.apart)
        by_table = (self.sharding_types_of, self.cached_share_of, self.narrowest_columns_of, self.pinned, self.excluded)
        return groups.union(self.never_cached, *by_table)

    @property
    def places_freely(self) -> bool:
        """Whether tables may go to any device that has room, as all devices have alike."""
        return not (
            self.pinned
            or self.excluded
            or self.excluded_devices
            or self.together
            or self.apart
            or self.memory_bytes_of
            or self.reserve_bytes
        )


UNCONSTRAINED = Constraints()
"""Whole tables and column shards, on any device that has room."""

ANY_SHARDING = Constraints(sharding_types=SHARDING_TYPES)
"""Every way to shard, in device memory."""
