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

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from dreamshard.files.foreign import MOST_COLUMNS, MOST_MEMORY_GB, brief, reading, yaml_content
from dreamshard.placement import ON_EVERY_DEVICE, ON_ONE_DEVICE, SHARDING_TYPES, ShardingType, most_ranges
from dreamshard.tables import DIM_MULTIPLE


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

    def renumbered(self, number: Sequence[int]) -> "Constraints":
        """The same with device `d` called `number[d]`."""

        def renamed(devices: Sequence[int]) -> tuple[int, ...]:
            return tuple(sorted(number[device] for device in devices))

        return replace(
            self,
            pinned={table: renamed(devices) for table, devices in self.pinned.items()},
            excluded={table: renamed(devices) for table, devices in self.excluded.items()},
            excluded_devices=renamed(self.excluded_devices),
            memory_bytes_of={number[device]: room for device, room in self.memory_bytes_of.items()},
        )

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

        `tables` are not column shards; `dims` are columns of those that may be split.
        """
        return next(_contradictions(self, tables, num_devices, dims or {}), "")


UNCONSTRAINED = Constraints()
"""Whole tables and column shards, on any device that has room."""

ANY_SHARDING = Constraints(sharding_types=SHARDING_TYPES)
"""Every way to shard, in device memory."""


def _contradictions(
    constraints: Constraints, tables: Sequence[str], num_devices: int, dims: Mapping[str, int]
) -> Iterator[str]:
    named = {
        "excluded devices": constraints.excluded_devices,
        "memory of single devices": tuple(constraints.memory_bytes_of),
        **{f"the pin of table {name!r}": devices for name, devices in constraints.pinned.items()},
        **{f"the devices that table {name!r} may not use": devices for name, devices in constraints.excluded.items()},
    }
    for what, own in named.items():
        for device in set(own) - set(range(num_devices)):
            yield f"{what}: there is no device {device}, only devices 0..{num_devices - 1}"
    if len(set(constraints.excluded_devices)) == num_devices:
        yield f"all {num_devices} devices are excluded, so no table has a place"
    allowed = {name: constraints.devices_for(name, num_devices) for name in dict.fromkeys(tables)}
    for name, devices in allowed.items():
        types = constraints.sharding_types_for(name)
        ways = " or ".join(types)
        if not devices:
            pins = sorted(constraints.pinned.get(name, range(num_devices)))
            yield f"table {name!r} is pinned to devices {pins}, but all of them are excluded"
        if len(devices) < num_devices and set(types) <= set(ON_EVERY_DEVICE):
            yield f"table {name!r} may only be sharded {ways}, which needs all {num_devices} devices, not {len(devices)}"
        if len(devices) == 1 < num_devices and not set(types) & set(ON_ONE_DEVICE):
            yield f"table {name!r} may use one device only, but may only be sharded {ways}"
        narrowest = constraints.narrowest_columns_of.get(name, 0)
        if name in dims and set(types) == {"column_wise"} and most_ranges(dims[name], narrowest) < 2:
            yield (
                f"table {name!r} may only be sharded column_wise, but its {dims[name]} columns do not make two shards of at "
                f"least {max(narrowest, DIM_MULTIPLE)}, a multiple of {DIM_MULTIPLE}; allow table_wise for it"
            )
    for group, is_apart in (
        *((each, False) for each in constraints.together),
        *((each, True) for each in constraints.apart),
    ):
        present = sorted(group & allowed.keys())
        common = [allowed[name] for name in present] or [frozenset[int]()]
        if is_apart and len(frozenset().union(*common)) < len(present):
            yield f"tables {present} are to be on devices of their own, but have fewer devices than that"
        if not is_apart and len(present) > 1 and not frozenset.intersection(*common):
            yield f"tables {present} are to share a device, but there is none that all of them may use"
        if is_apart and any(len(group & other & allowed.keys()) > 1 for other in constraints.together):
            yield f"tables {present} are to be apart, but some of them also to share a device"
        split = [name for name in present if "table_wise" not in constraints.sharding_types_for(name)]
        if not is_apart and len(present) > 1 and split:
            yield f"tables {present} are to share a device, whole, but {split} may not be table_wise"


_PROBLEM, _ADVICE = "is neither YAML nor JSON", "so the placement would ignore it; correct it"
_DEFAULT = "default"  # in `sharding_types`: of tables that are not named


def parse_sharding(text: str) -> tuple[ShardingType, ...]:
    """Ways to shard, as one types them: `auto` (every way), `columns`, `whole`, or a list such as `row_wise,table_wise`."""
    short: Mapping[str, tuple[ShardingType, ...]] = {
        "auto": SHARDING_TYPES,
        "columns": ("table_wise", "column_wise"),
        "whole": ("table_wise",),
    }
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or set(names) - {*short, *SHARDING_TYPES}:
        raise ValueError(
            f"{brief(text)} names no way to shard that exists; give {', '.join(short)}, or a list of "
            f"{', '.join(SHARDING_TYPES)}"
        )
    chosen = {each for name in names for each in short.get(name, (name,))}
    return tuple(each for each in SHARDING_TYPES if each in chosen)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_Devices = Annotated[
    list[StrictInt], BeforeValidator(_listed), Field(min_length=1), AfterValidator(lambda v: tuple(sorted(set(v))))
]
_Groups = Annotated[list[Annotated[frozenset[str], Field(min_length=2)]], AfterValidator(tuple)]
_Bytes = Annotated[float, Field(ge=0, le=MOST_MEMORY_GB), AfterValidator(lambda gib: round(gib * 2**30))]
_Ways = Annotated[list[str], BeforeValidator(_listed), AfterValidator(lambda names: parse_sharding(",".join(names)))]


class _File(BaseModel):
    """The content of a file: the fields of `Constraints` under the file's keys."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    pinned: dict[str, _Devices] = Field({}, alias="pin")
    excluded: dict[str, _Devices] = Field({}, alias="exclude")
    excluded_devices: _Devices = Field([], alias="exclude_devices")
    together: _Groups = []
    apart: _Groups = []
    memory_bytes_of: Annotated[
        dict[int, _Bytes], BeforeValidator(lambda value: dict(enumerate(value)) if isinstance(value, list) else value)
    ] = Field({}, alias="memory_gb")
    reserve_bytes: _Bytes = Field(0, alias="reserve_gb")
    sharding_types: Annotated[
        dict[str, _Ways], BeforeValidator(lambda value: value if isinstance(value, dict) else {_DEFAULT: value})
    ] = {}
    narrowest_columns_of: dict[str, Annotated[int, Field(ge=1, le=MOST_COLUMNS)]] = Field({}, alias="narrowest_columns")
    cache: bool | dict[str, Annotated[float, Field(gt=0, le=1)]] = False

    def given(self) -> dict[str, Any]:
        """The fields of `Constraints` that the file gives."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        if "sharding_types" in found:
            found["sharding_types_of"] = found.pop("sharding_types")
            if _DEFAULT in found["sharding_types_of"]:
                found["sharding_types"] = found["sharding_types_of"].pop(_DEFAULT)
        if "cache" in found:
            found["caching" if isinstance(self.cache, bool) else "cached_share_of"] = found.pop("cache")
        return found


def parse_constraints(
    source: str | Path, tables: Collection[str], num_devices: int, base: Constraints = UNCONSTRAINED
) -> Constraints:
    """The constraints of a `.yaml`, `.yml` or `.json` file, or of its text; `PlacementTask` finds contradictions in them.

    Args:
        source: a path, or the text.
        tables: names that the constraints may use.
        num_devices: `D`.
        base: constraints that hold where the source says nothing.

    Raises:
        ValueError: there is no such file, or it is wrong or names a table that does not exist.
    """
    name = str(source) if isinstance(source, Path) else "the constraints"
    if isinstance(source, Path) and not source.is_file():
        raise ValueError(f"there is no file of constraints {source}; check the path")
    text = source.read_bytes() if isinstance(source, Path) else source
    content = yaml_content(text, name, _PROBLEM, _ADVICE) or {}  # JSON is YAML
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds no constraints; give one per line, for example `reserve_gb: 8`")
    with reading(name, "is wrong", _ADVICE):
        file = _File.model_validate(content)
    if isinstance(content.get("memory_gb"), list) and len(file.memory_bytes_of) != num_devices:
        raise ValueError(
            f"{name} gives memory_gb for {len(file.memory_bytes_of)} devices; give one size for each of {num_devices}"
        )
    constraints = replace(base, **file.given())
    for table in sorted(constraints.tables_named() - base.tables_named() - set(tables)):
        close = difflib.get_close_matches(table, list(tables), n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{name} names a table {brief(table)}, but there is none{meant}; correct the name")
    return constraints
