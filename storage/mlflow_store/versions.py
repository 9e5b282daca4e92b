"""Versions side by side, from their trainings and tags and the metrics of their runs; also as rows of the lake.

`<lake>/versions/versions.parquet` holds the registry as a command or flow last changed it, for the view `versions`.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from storage.lake.parquet_files import read_parquet, write_parquet
from storage.lake.schemas import datasets
from storage.mlflow_store import registry, runs
from storage.mlflow_store.registry import Version
from storage.settings import Settings


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions of all algorithms, newest first.

    Returns:
        Of each: its reference, standing (in words), the columns of the view `versions`, and every metric by name.
    """
    rows = _rows(settings, registry.all_versions(settings))
    rows.sort(key=lambda row: row["created_at"], reverse=True)  # stable: of one second, the highest number first
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def version(settings: Settings, name: str) -> dict[str, Any]:
    """One version in full: the columns of `versions`, all other tags, and its description.

    Args:
        name: a reference to it.

    Raises:
        ValueError: there is no such version; the message lists the existing ones.
    """
    found = registry.find(settings, name)
    (row,) = _rows(settings, [found])
    tags = {name: value for name, value in sorted(found.tags.items()) if name not in (*row, registry.MADE_OF)}
    return row | {"tags": tags, "description": found.description}


def write_versions(settings: Settings) -> None:
    """Write the registry to the lake as it is now, after a version or an alias changed; the caller holds its lock."""
    path = settings.lake_root / "versions" / "versions.parquet"
    table = pa.Table.from_pylist(versions(settings)[::-1], schema=datasets()["versions"])
    if not path.exists() or read_parquet(path) != table:
        write_parquet(path, table)


def _rows(settings: Settings, known: list[Version]) -> list[dict[str, Any]]:
    data = runs.data_of_runs(settings, [each.run for each in known])
    return [_row(each, *data.get(each.run, ({}, {}))) for each in known]


def _row(version: Version, params: Mapping[str, str], run_metrics: Mapping[str, float]) -> dict[str, Any]:
    text = {**params, **version.tags}
    metrics = {name: value for name, value in run_metrics.items() if "/" not in name}
    prefix = runs.of_tasks(text.get("tasks", ""))
    of_tasks = {name.removeprefix(prefix): value for name, value in run_metrics.items() if name.startswith(prefix)}
    metrics |= of_tasks if prefix else {}
    columns: dict[str, Any] = {}
    for field in datasets()["versions"]:
        value = text.get(field.name) or None
        if pa.types.is_floating(field.type):
            columns[field.name] = metrics.get(field.name, metrics.get(f"eval_{field.name}"))
        else:
            columns[field.name] = int(value) if value and pa.types.is_integer(field.type) else value
    return {
        "reference": version.uri,
        "standing": version.standing,
        **columns,
        "version": version.number,
        **{name: getattr(version, name) for name in ("model", "algorithm", "name", "is_default")},
        "aliases": ", ".join(version.aliases),
        "created_at": version.created.replace(microsecond=0),
        **version.made_of.facts,
        "mlflow_run": version.run,
        **dict(sorted(metrics.items())),
        "prediction_error": metrics.get("eval_predicted_mape"),
    }
