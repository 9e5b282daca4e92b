"""Plans from JSON, field by field: what a file says is checked before a `Plan` is made of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from dreamshard.files.bounds import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS
from dreamshard.files.foreign import brief, file_bytes, json_content, reading
from dreamshard.measured_on import Difference, MeasuredOn
from dreamshard.placement import SHARDING_TYPES
from dreamshard.plan.plan_file import Plan, Shard

_PROBLEM = "is not a plan"
_ADVICE = (
    "so it cannot be used; give the JSON that `dreamshard place --format json` writes: "
    '{"num_devices", "placer", "predicted", "shards"}'
)


def parse_plan(text: str | bytes, source: str = "the plan") -> Plan:
    """Read the text of a PLAN.json; `source` names it in errors.

    Raises:
        ValueError: the text is not JSON, or not a plan.
    """
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        return _plan(_object(content, "it"), source)


def read_plan(path: str | Path) -> Plan:
    """Read a PLAN.json.

    Raises:
        ValueError: the file is missing or not a plan.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}, so nothing can be compared with it; check the path")
    return parse_plan(file_bytes(Path(path), _PROBLEM, _ADVICE), str(path))


def checked_shard(fields: Mapping[str, Any]) -> Shard:
    """A shard of the fields that a file gives.

    Raises:
        KeyError: one is missing.
        TypeError: one is of another type, or out of bounds.
    """
    sharding_type, cached_share = fields.get("sharding_type"), fields.get("cached_share")
    if sharding_type is not None and sharding_type not in SHARDING_TYPES:
        raise TypeError(f"sharding_type is {brief(sharding_type)}, not one of {', '.join(SHARDING_TYPES)}")
    if cached_share is not None and not 0 < _number(cached_share, "cached_share") <= 1:
        raise TypeError(f"cached_share is {brief(cached_share)}, not above 0 and at most 1")
    row_end = fields.get("row_end")
    return Shard(
        table=_text(fields["table"], "table"),
        device=whole(fields["device"], "device", MOST_DEVICES),
        column_start=whole(fields["column_start"], "column_start", MOST_COLUMNS),
        column_end=whole(fields["column_end"], "column_end", MOST_COLUMNS),
        row_start=whole(fields.get("row_start", 0), "row_start", MOST_ROWS),
        row_end=None if row_end is None else whole(row_end, "row_end", MOST_ROWS),
        sharding_type=sharding_type,
        cached_share=cached_share,
    )


def whole(value: object, field: str, most: int, least: int = 0) -> int:
    """A whole number of a file.

    Raises:
        TypeError: it is none, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TypeError(f"{field} is {brief(value)}, not a whole number from {least} to {most}")
    return value


def _plan(content: Mapping[str, Any], source: str) -> Plan:
    predicted = _object(content.get("predicted") or {}, "predicted")
    overall_ms, per_host = predicted.get("overall_ms"), content.get("devices_per_host")
    rows = _object(content.get("rows") or {}, "rows")
    num_devices = whole(content["num_devices"], "num_devices", MOST_DEVICES, 1)
    return Plan(
        num_devices=num_devices,
        placer=_text(content.get("placer", "unknown"), "placer"),
        shards=tuple(checked_shard(_object(entry, "a shard")) for entry in _list(content["shards"], "shards")),
        devices_per_host=None if per_host is None else whole(per_host, "devices_per_host", MOST_DEVICES, 1),
        rows={name: whole(count, f"rows of {brief(name)}", MOST_ROWS, 1) for name, count in rows.items()},
        overall_ms=None if overall_ms is None else _number(overall_ms, "overall_ms"),
        devices=tuple(_figures(entry) for entry in _list(predicted.get("devices") or [], "devices")),
        costs_of=MeasuredOn.from_json(content["costs_of"]) if content.get("costs_of") else None,
        differs_in=tuple(_difference(each) for each in _list(content.get("differs_in") or [], "differs_in")),
        warning=str(content.get("warning") or ""),
    )


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{field} is {brief(value)}, not an object")
    return value


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{field} is {brief(value)}, not a list")
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{field} is {brief(value)}, not a name")
    return value


def _number(value: Any, field: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} is {brief(value)}, not a number")
    return value


def _figures(entry: Any) -> dict[str, int | float]:
    return {name: _number(value, name) for name, value in _object(entry, "a device").items()}


def _difference(value: Any) -> Difference:
    found: Difference | None = next((each for each in get_args(Difference) if each == value), None)
    if found is None:
        raise TypeError(f"differs_in has {brief(value)}, not one of {', '.join(get_args(Difference))}")
    return found
