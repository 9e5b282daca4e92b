"""A file of constraints, in YAML or JSON.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.contradictions import contradiction
from dreamshard.files.bounds import MOST_COLUMNS, MOST_MEMORY_GB
from dreamshard.files.foreign import brief, file_bytes, yaml_content
from dreamshard.placement import SHARDING_TYPES, ShardingType

KEYS = (
    "pin",
    "exclude",
    "exclude_devices",
    "together",
    "apart",
    "memory_gb",
    "reserve_gb",
    "sharding_types",
    "narrowest_columns",
    "cache",
)
"""Of a file of constraints."""
_PROBLEM, _ADVICE = "is neither YAML nor JSON", "so the placement would ignore it; correct it"
_DEFAULT = "default"  # in `sharding_types`: of tables that are not named


def read_constraints(
    path: str | Path, tables: Collection[str], num_devices: int, base: Constraints = UNCONSTRAINED
) -> Constraints:
    """The constraints of a file.

    Args:
        path: of a `.yaml`, `.yml` or `.json` file.
        tables: names that the file may use.
        num_devices: `D`.
        base: constraints that hold where the file says nothing.

    Raises:
        ValueError: the file is missing or wrong, names a table or device that does not exist, or contradicts itself.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file of constraints {path}, so the placement would ignore them; check the path")
    text = file_bytes(Path(path), _PROBLEM, _ADVICE)
    return parse_constraints(text, tables, num_devices, base, source=str(path))


def parse_constraints(
    text: str | bytes,
    tables: Collection[str],
    num_devices: int,
    base: Constraints = UNCONSTRAINED,
    *,
    source: str = "the constraints",
) -> Constraints:
    """The constraints of a file's text, as in `read_constraints`; `source` names it in errors.

    Raises:
        ValueError: as in `read_constraints`.
    """
    content = yaml_content(text, source, _PROBLEM, _ADVICE) or {}  # JSON is YAML
    if not isinstance(content, dict):
        raise ValueError(f"{source} holds no constraints; give one per line, for example `reserve_gb: 8`")
    for key in content:
        if key not in KEYS:
            raise ValueError(
                f"{source} has the unknown key {brief(key)}, which would be ignored{_meant(str(key), KEYS)}; the keys are "
                f"{', '.join(KEYS)}"
            )
    constraints = replace(base, **_Content(source, content, num_devices).fields())
    for name in sorted(constraints.tables_named() - base.tables_named()):
        if name not in tables:
            raise ValueError(
                f"{source} names a table {brief(name)}, but there is none{_meant(name, tables)}, so its constraint would be "
                "ignored; correct the name, or leave it out"
            )
    if reason := contradiction(constraints, tuple(tables), num_devices):
        raise ValueError(f"{source} cannot be met: {reason}; change one of these constraints")
    return constraints


def parse_sharding(text: str) -> tuple[ShardingType, ...]:
    """Ways to shard, as one types them: `auto` (every way), `columns`, `whole`, or a list such as `row_wise,table_wise`.

    Raises:
        ValueError: one is unknown.
    """
    short: Mapping[str, tuple[ShardingType, ...]] = {
        "auto": SHARDING_TYPES,
        "columns": ("table_wise", "column_wise"),
        "whole": ("table_wise",),
    }
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in short and name not in SHARDING_TYPES]
    if unknown or not names:
        raise ValueError(
            f"{brief(text)} names no way to shard that exists, so none could be chosen; give {', '.join(short)}, or a list "
            f"of {', '.join(SHARDING_TYPES)}"
        )
    chosen = {each for name in names for each in short.get(name, (name,))}
    return tuple(each for each in SHARDING_TYPES if each in chosen)


class _Content:
    """The content of a file, value by value."""

    def __init__(self, source: str, content: Mapping[str, Any], num_devices: int) -> None:
        self.source, self.content, self.num_devices = source, content, num_devices

    def fields(self) -> dict[str, Any]:
        """The fields of `Constraints` that the file gives."""
        return dict(self._fields())

    def _fields(self) -> Iterator[tuple[str, Any]]:
        given = self.content
        if "pin" in given:
            yield "pinned", {str(name): self._devices("pin", each) for name, each in self._mapping("pin").items()}
        if "exclude" in given:
            excluded = {str(name): self._devices("exclude", each) for name, each in self._mapping("exclude").items()}
            yield "excluded", excluded
        if "exclude_devices" in given:
            yield "excluded_devices", self._devices("exclude_devices", given["exclude_devices"])
        for key in ("together", "apart"):
            if key in given:
                yield key, self._groups(key)
        if "memory_gb" in given:
            yield "memory_bytes_of", self._memory()
        if "reserve_gb" in given:
            yield "reserve_bytes", round(self._number("reserve_gb", given["reserve_gb"]) * 2**30)
        if "sharding_types" in given:
            yield from self._sharding_types()
        if "narrowest_columns" in given:
            columns = self._mapping("narrowest_columns")
            yield "narrowest_columns_of", {str(name): self._count(each) for name, each in columns.items()}
        if "cache" in given:
            yield from self._cache()

    def _mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.content[key]
        if not isinstance(value, dict):
            raise self._wrong(key, value, "give one value per table, for example `pin: {big: 0}`")
        return value

    def _devices(self, key: str, value: Any) -> tuple[int, ...]:
        devices = value if isinstance(value, list) else [value]
        if not devices or not all(isinstance(each, int) and not isinstance(each, bool) for each in devices):
            raise self._wrong(key, value, "give a device's number, or a list of them, for example [0, 1]")
        return tuple(sorted(set(devices)))

    def _groups(self, key: str) -> tuple[frozenset[str], ...]:
        value = self.content[key]
        if not isinstance(value, list) or not all(isinstance(group, list) and len(group) > 1 for group in value):
            raise self._wrong(key, value, f"give groups of at least two tables, for example `{key}: [[a, b], [c, d]]`")
        return tuple(frozenset(map(str, group)) for group in value)

    def _memory(self) -> dict[int, int]:
        value = self.content["memory_gb"]
        if isinstance(value, list):
            if len(value) != self.num_devices:
                advice = f"give one size for each of the {self.num_devices} devices, or {{device: GiB}}"
                raise self._wrong("memory_gb", value, advice)
            value = dict(enumerate(value))
        if not isinstance(value, dict) or not all(isinstance(device, int) for device in value):
            raise self._wrong("memory_gb", value, "give for example `memory_gb: {0: 60, 1: 40}`, in GiB")
        return {device: round(self._number("memory_gb", size) * 2**30) for device, size in value.items()}

    def _sharding_types(self) -> Iterator[tuple[str, Any]]:
        value = self.content["sharding_types"]
        by_table = value if isinstance(value, dict) else {_DEFAULT: value}
        types = {str(name): self._types(each) for name, each in by_table.items()}
        if _DEFAULT in types:
            yield "sharding_types", types.pop(_DEFAULT)
        yield "sharding_types_of", types

    def _types(self, value: Any) -> tuple[ShardingType, ...]:
        names: Sequence[Any] = value if isinstance(value, list) else [value]
        try:
            return parse_sharding(",".join(map(str, names)))
        except ValueError as error:
            raise ValueError(f"{self.source} gives sharding_types: {error}") from error

    def _cache(self) -> Iterator[tuple[str, Any]]:
        value = self.content["cache"]
        if isinstance(value, bool):
            yield "caching", value
            return
        shares = {str(name): self._number("cache", share) for name, share in self._mapping("cache").items()}
        if not all(0 < share <= 1 for share in shares.values()):
            raise self._wrong("cache", value, "give shares of a table's rows above 0, up to 1")
        yield "cached_share_of", shares

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_MEMORY_GB:
            raise self._wrong(key, value, f"give a number that is not negative, at most {MOST_MEMORY_GB:,}")
        return float(value)

    def _count(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_COLUMNS:
            raise self._wrong("narrowest_columns", value, "give a whole number of columns, at least 1")
        return value

    def _wrong(self, key: str, value: Any, advice: str) -> ValueError:
        return ValueError(f"{self.source} gives {key}: {brief(value)}, which is no value for it; {advice}")


def _meant(name: str, known: Collection[str]) -> str:
    """A question for the name that was perhaps meant."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
