"""Constraints on a placement besides the devices' memory: in Python, and as a YAML or JSON file.

pin: {big: 0, other: [0, 1]}        # devices that may hold a table
exclude: {slow: [2, 3]}             # devices that may not
exclude_devices: [3]                # devices without tables
together: [[a, b]]                  # groups on one device
apart: [[c, d]]                     # groups on devices of their own
memory_gb: {0: 60, 1: 40}           # GiB of single devices, or a list with one per device
reserve_gb: 8                       # of each device, for dense parameters and activations
sharding_types: {default: [table_wise, column_wise], hot: row_wise}
narrowest_columns: {wide: 64}       # of a shard of a table
cache: true                         # or {table: share of its rows in device memory}
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from dreamshard.files import MOST_MEMORY_GB, InputError, brief, did_you_mean, reading
from dreamshard.tables import ON_ONE_DEVICE, SHARDING_TYPES, Dim, ShardingType


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Constraints on a placement. Tables are named as in the task; a constraint holds for all of a table's shards.

    Attributes:
        sharding_types: those that tables may take; None for whole tables and columns, in TorchRec's place for all.
        sharding_types_of: the same for single tables, instead.
        caching: whether tables may be in host memory with a cache on the device, to make room there; None for no, in
            TorchRec's place for yes.
        cached_share_of: share of the rows to cache of single tables, which must be in host memory; 0 for device memory.
        narrowest_columns_of: the fewest columns of a shard of single tables.
        pinned: the devices that may hold a table; a table pinned to one device is whole there.
        together: groups of tables, each whole, that share a device.
        apart: groups of tables; no two of a group share a device.
        memory_bytes_of: memory for tables on single devices, instead of the task's; none is on a device of 0 bytes.
        reserve_bytes: memory per device kept free for dense parameters and activations.

    >>> bounded = ds.Constraints(pinned={"user": (0,)}, apart=(frozenset({"user", "item"}),))
    >>> ds.place(replace(task, constraints=bounded), "a100").tables["item"].where
    (1,)
    """

    sharding_types: tuple[ShardingType, ...] | None = None
    sharding_types_of: Mapping[str, tuple[ShardingType, ...]] = field(default_factory=dict)
    caching: bool | None = None
    cached_share_of: Mapping[str, float] = field(default_factory=dict)
    narrowest_columns_of: Mapping[str, int] = field(default_factory=dict)
    pinned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    together: tuple[frozenset[str], ...] = ()
    apart: tuple[frozenset[str], ...] = ()
    memory_bytes_of: Mapping[int, int] = field(default_factory=dict)
    reserve_bytes: int = 0

    def may_be_cached(self, table: str) -> bool:
        """Whether a table may be in host memory."""
        return bool(self.cached_share_of.get(table, self.caching))

    def sharding_types_for(self, table: str) -> tuple[ShardingType, ...]:
        """Sharding types that a table may take."""
        return self.sharding_types_of.get(table, self.usual_types)

    @property
    def usual_types(self) -> tuple[ShardingType, ...]:
        """Sharding types of tables that `sharding_types_of` does not name."""
        return ON_ONE_DEVICE if self.sharding_types is None else self.sharding_types

    def renumbered(self, number: Sequence[int]) -> "Constraints":
        """The same with device `d` called `number[d]`."""
        pinned = {table: tuple(sorted(number[d] for d in devices)) for table, devices in self.pinned.items()}
        memory = {number[device]: size for device, size in self.memory_bytes_of.items()}
        return replace(self, pinned=pinned, memory_bytes_of=memory)

    def tables_named(self) -> frozenset[str]:
        """Every table that a constraint names."""
        by_table = self.sharding_types_of, self.cached_share_of, self.narrowest_columns_of, self.pinned
        return frozenset().union(*self.together, *self.apart, *by_table)

    @property
    def all_sharding_types(self) -> frozenset[ShardingType]:
        """Sharding types that any table may take."""
        return frozenset(self.usual_types).union(*self.sharding_types_of.values())

    @property
    def places_freely(self) -> bool:
        """Whether tables may go to any device that has memory, and all devices have the same."""
        return not (self.pinned or self.together or self.apart or self.memory_bytes_of or self.reserve_bytes)

    def contradictions(self, tables: Iterable[str], capacity: Sequence[int]) -> Iterator[str]:
        """Why no placement meets the constraints on places, a sentence each; `capacity` is `[D]` bytes for tables."""
        usable = {device for device, size in enumerate(capacity) if size > 0}
        if not usable:
            yield f"none of the {len(capacity)} devices has memory for tables"
        allowed = {name: usable.intersection(self.pinned.get(name, usable)) for name in tables}
        for table, devices in self.pinned.items():
            if not allowed.get(table, usable):
                yield f"table {table!r} may only be on devices {devices}, and none of them can hold tables"
        for group in self.together:
            present = sorted(group & allowed.keys())
            other = [
                t for t in present if "table_wise" not in self.sharding_types_for(t) or self.cached_share_of.get(t)
            ]
            if len(present) > 1 and other:
                yield f"tables {present} are to share a device, but {other} may not be table_wise in device memory"
            if present and not set.intersection(*(allowed[name] for name in present)):
                yield f"tables {present} are to share a device, but none may hold them all; correct their pins"
            if any(len(apart.intersection(present)) > 1 for apart in self.apart):
                yield f"tables {present} are to share a device, but some of them to be apart"
        for group in self.apart:
            present = sorted(group & allowed.keys())
            if (few := len(set().union(*(allowed[name] for name in present)))) < len(present):
                yield f"tables {present} are to be apart, but have only {few} devices; separate fewer"


UNCONSTRAINED = Constraints()
"""Whole tables and column shards, on any device with enough memory."""

ANY_SHARDING = Constraints(sharding_types=SHARDING_TYPES)
"""Every sharding type, in device memory."""

_ADVICE = "correct it"
_DEFAULT = "default"  # in `sharding_types`: of tables that are not named
_SHORT: Mapping[str, tuple[ShardingType, ...]] = {
    "auto": SHARDING_TYPES,
    "columns": ("table_wise", "column_wise"),
    "whole": ("table_wise",),
}


def parse_sharding(text: str) -> tuple[ShardingType, ...]:
    """Sharding types as typed: `auto` (all of them), `columns`, `whole`, or a list such as `row_wise,table_wise`."""
    names, known = [name.strip() for name in text.split(",") if name.strip()], (*_SHORT, *SHARDING_TYPES)
    if not names or set(names).difference(known):
        raise ValueError(f"{brief(text)} is not a sharding type; list some of {', '.join(known)}")
    chosen = {kind for name in names for kind in _SHORT.get(name, (name,))}
    return tuple(kind for kind in SHARDING_TYPES if kind in chosen)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_Devices = Annotated[set[StrictInt], BeforeValidator(_listed), Field(min_length=1)]
_Groups = tuple[Annotated[frozenset[str], Field(min_length=2)], ...]
_Gib = Annotated[float, Field(ge=0, le=MOST_MEMORY_GB)]
_Ways = Annotated[
    tuple[ShardingType, ...], BeforeValidator(lambda value: parse_sharding(",".join(map(str, _listed(value)))))
]
_ByDevice = BeforeValidator(lambda value: dict(enumerate(value)) if isinstance(value, list) else value)
_OfTables = BeforeValidator(lambda value: value if isinstance(value, dict) else {_DEFAULT: value})


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml is untyped here
    """Refuses a key that is given twice, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See `SafeLoader`."""
        keys = [key.value for key, _ in node.value]
        if repeated := next((key for key in keys if keys.count(key) > 1), None):
            raise InputError(f"the constraints give {brief(repeated)} twice; join them under one key")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _File(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    pin: dict[str, _Devices] = {}
    exclude: dict[str, _Devices] = {}
    exclude_devices: _Devices = set()
    together: _Groups = ()
    apart: _Groups = ()
    memory_gb: Annotated[dict[int, _Gib], _ByDevice] = {}
    reserve_gb: _Gib = 0
    sharding_types: Annotated[dict[str, _Ways], _OfTables] = {}
    narrowest_columns: dict[str, Dim] = {}
    cache: bool | dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None


def parse_constraints(
    source: str | Path,
    tables: Collection[str],
    num_devices: int,
    sharding_types: tuple[ShardingType, ...] | None = None,
) -> Constraints:
    """The constraints of a `.yaml`, `.yml` or `.json` file, or of its text; `PlacementTask` finds contradictions in them.

    Args:
        source: a path, or the text.
        tables: names that the constraints may use.
        sharding_types: those that tables may take if the source names no default.

    Raises:
        ValueError: there is no such file, or it is wrong or names a table or a device that does not exist.
    """
    name = str(source) if isinstance(source, Path) else "the constraint text"
    if isinstance(source, Path) and not source.is_file():
        raise ValueError(f"there is no file of constraints {source}; check the path")
    text = source.read_bytes() if isinstance(source, Path) else source
    with reading(name, "is neither YAML nor JSON", _ADVICE):
        content = yaml.load(text, _Loader) or {}  # a safe loader; JSON is YAML
    with reading(name, "is wrong", _ADVICE):
        file = _File.model_validate(content)
    for unknown in content.keys() - _File.model_fields.keys():
        raise ValueError(f"{name} has {brief(unknown)}{did_you_mean(str(unknown), _File.model_fields)}; {_ADVICE}")
    if isinstance(content.get("memory_gb"), list) and len(file.memory_gb) != num_devices:
        raise ValueError(
            f"{name} gives memory_gb for {len(file.memory_gb)} devices; give one size for each of {num_devices}"
        )
    types, every = file.sharding_types, set(range(num_devices))
    constraints = Constraints(
        sharding_types=types.pop(_DEFAULT, sharding_types),
        sharding_types_of=types,
        caching=None if isinstance(file.cache, dict) else file.cache,
        cached_share_of=file.cache if isinstance(file.cache, dict) else {},
        narrowest_columns_of=file.narrowest_columns,
        pinned={
            table: tuple(sorted(file.pin.get(table, every) - file.exclude.get(table, set())))
            for table in file.pin | file.exclude
        },
        together=file.together,
        apart=file.apart,
        memory_bytes_of={device: round(gib * 2**30) for device, gib in file.memory_gb.items()}
        | dict.fromkeys(file.exclude_devices, 0),
        reserve_bytes=round(file.reserve_gb * 2**30),
    )
    named = constraints.memory_bytes_of.keys() | set().union(*file.pin.values(), *file.exclude.values())
    if others := sorted(named - every):
        raise ValueError(
            f"{name} names devices {others}, but there are only devices 0..{num_devices - 1}; correct them"
        )
    for table in sorted(constraints.tables_named() - set(tables)):
        raise ValueError(
            f"{name} names a table {brief(table)}, but there is none{did_you_mean(table, tables)}; correct the name"
        )
    return constraints
