"""The registered versions as rows of the lake: `<lake>/versions/versions.parquet`, which the view `versions` reads.

A query sees the registry as it was when a command or flow last changed it.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from dreamshard.names import ALGORITHMS, VersionReference, number_of
from storage.filesystem import AnyPath
from storage.lake import schemas
from storage.lake.parquet_files import read_parquet, write_parquet
from storage.mlflow_store import registry, versions
from storage.settings import Settings
from storage.store import Store

_METRICS = {
    "reference_cost_ms": "reference_cost_ms",
    "eval_overall_ms": "eval_overall_ms",
    "eval_place_ms": "eval_place_ms",
    "prediction_error": "eval_predicted_mape",
    "gain_over_random": "eval_gain_over_random",
    **{f"gain_over_best_baseline{end}": f"eval_gain_over_best_baseline{end}" for end in ("", "_low", "_high")},
}
"""Column -> metric of the version's run."""


def write_versions(store: Store) -> None:
    """Write the registry as it is now; call it, holding the registry's lock, wherever a version or an alias changed."""
    path, rows = _path(store.settings), registered(store.settings)
    if not path.exists() or read_parquet(path) != rows:
        write_parquet(path, rows)


def registered(settings: Settings) -> pa.Table:
    """One row per version in the registry, oldest first, with the columns of `schemas.VERSIONS`."""
    tags: dict[str, Mapping[str, str]] = {}
    for algorithm in ALGORITHMS:
        tags |= registry.tags_by_version(settings.of(algorithm))
    rows = [_row(row, tags[row["version"]]) for row in reversed(versions.versions(settings))]
    return pa.Table.from_pylist(rows, schema=schemas.VERSIONS)


def _path(settings: Settings) -> AnyPath:
    return settings.lake_root / "versions" / "versions.parquet"


def _row(shown: Mapping[str, Any], tags: Mapping[str, str]) -> dict[str, Any]:
    text = {**tags, **{name: value for name, value in shown.items() if isinstance(value, str) and value}}
    measured = json.loads(tags["measured_on"]) if "measured_on" in tags else {}
    row: dict[str, Any] = {field.name: _typed(field.type, text.get(field.name)) for field in schemas.VERSIONS}
    return row | {
        "version": number_of(shown["version"]),
        "warm_from": _typed(pa.int32(), VersionReference.of(text.get("warm_from", "")).name),
        "created_at": datetime.strptime(shown["created_at"], "%Y-%m-%d %H:%M:%S")
        .replace(tzinfo=UTC)
        .replace(tzinfo=None),
        "dataset_version": tags.get("dataset"),
        "iterations": _typed(pa.int32(), tags.get("iterations") or tags.get("iteration")),
        "devices": measured.get("num_devices", row["devices"]),
        "devices_per_host": measured.get("devices_per_host", row["devices_per_host"]),
        "mlflow_run": shown["run"],
        **{column: shown.get(metric) for column, metric in _METRICS.items()},
    }


def _typed(kind: pa.DataType, text: str | None) -> Any:
    """A tag as a column has it: None if there is none, or if it is no number (`tables_per_task: all`)."""
    if not text:
        return None
    if pa.types.is_integer(kind):
        return int(text) if text.isdigit() else None
    if pa.types.is_floating(kind):
        return float(text)
    return text if kind == pa.string() else None
