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
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files.foreign import MOST_COLUMNS, MOST_MEMORY_GB, brief, file_bytes, validation_problem, yaml_content
from dreamshard.placement import SHARDING_TYPES, ShardingType

_PROBLEM, _ADVICE = "is neither YAML nor JSON", "so the placement would ignore it; correct it"
_DEFAULT = "default"  # in `sharding_types`: of tables that are not named


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
    """The content of a file; each field is checked and has the type that `Constraints` has."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    pin: dict[str, _Devices] = {}
    exclude: dict[str, _Devices] = {}
    exclude_devices: _Devices = []
    together: _Groups = []
    apart: _Groups = []
    memory_gb: Annotated[
        dict[int, _Bytes], BeforeValidator(lambda value: dict(enumerate(value)) if isinstance(value, list) else value)
    ] = {}
    reserve_gb: _Bytes = 0
    sharding_types: Annotated[
        dict[str, _Ways], BeforeValidator(lambda value: value if isinstance(value, dict) else {_DEFAULT: value})
    ] = {}
    narrowest_columns: dict[str, Annotated[int, Field(ge=1, le=MOST_COLUMNS)]] = {}
    cache: bool | dict[str, Annotated[float, Field(gt=0, le=1)]] = False


_FIELDS = {
    "pin": "pinned",
    "exclude": "excluded",
    "exclude_devices": "excluded_devices",
    "together": "together",
    "apart": "apart",
    "memory_gb": "memory_bytes_of",
    "reserve_gb": "reserve_bytes",
    "narrowest_columns": "narrowest_columns_of",
}
"""Fields of `Constraints` by their keys."""


def read_constraints(
    path: str | Path, tables: Collection[str], num_devices: int, base: Constraints = UNCONSTRAINED
) -> Constraints:
    """The constraints of a `.yaml`, `.yml` or `.json` file; arguments and errors as for `parse_constraints`.

    Raises:
        ValueError: there is no such file.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file of constraints {path}; check the path")
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
    """The constraints of a file's text.

    Args:
        text: YAML or JSON.
        tables: names that the file may use.
        num_devices: `D`.
        base: constraints that hold where the file says nothing.
        source: names the file in errors.

    Raises:
        ValueError: the text is wrong, names a table or device that does not exist, or contradicts itself.
    """
    content = yaml_content(text, source, _PROBLEM, _ADVICE) or {}  # JSON is YAML
    if not isinstance(content, dict):
        raise ValueError(f"{source} holds no constraints; give one per line, for example `reserve_gb: 8`")
    for key in content:
        if key not in _File.model_fields:
            raise ValueError(
                f"{source} has the unknown key {brief(key)}{_meant(str(key), _File.model_fields)}; the keys are "
                f"{', '.join(_File.model_fields)}"
            )
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{source} is wrong at {validation_problem(error)}") from error
    if isinstance(content.get("memory_gb"), list) and len(file.memory_gb) != num_devices:
        raise ValueError(
            f"{source} gives memory_gb for {len(file.memory_gb)} devices; give one size for each of {num_devices}"
        )
    constraints = replace(base, **_fields(file))
    for name in sorted(constraints.tables_named() - base.tables_named()):
        if name not in tables:
            raise ValueError(
                f"{source} names a table {brief(name)}, but there is none{_meant(name, tables)}; correct the name"
            )
    if reason := constraints.contradiction(tuple(tables), num_devices):
        raise ValueError(f"{source} cannot be met: {reason}; change one of these constraints")
    return constraints


def _fields(file: _File) -> dict[str, Any]:
    """The fields of `Constraints` that the file gives."""
    given = file.model_fields_set
    found = {field: getattr(file, key) for key, field in _FIELDS.items() if key in given}
    if "sharding_types" in given:
        ways = dict(file.sharding_types)
        found |= {"sharding_types": ways.pop(_DEFAULT)} if _DEFAULT in ways else {}
        found["sharding_types_of"] = ways
    if "cache" in given:
        found |= {"caching": file.cache} if isinstance(file.cache, bool) else {"cached_share_of": file.cache}
    return found


def _meant(name: str, known: Collection[str]) -> str:
    """A question for the name that was perhaps meant."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
