"""Versions side by side, from tags of versions and parameters and metrics of their runs; also as rows of the lake.

`<lake>/versions/versions.parquet` holds the registry as a command or flow last changed it, for the view `versions`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from mlflow.entities.model_registry import ModelVersion

from dreamshard.training.config import ALGORITHMS
from storage.lake import schemas
from storage.lake.parquet_files import read_parquet, write_parquet
from storage.mlflow_store import registry, runs
from storage.mlflow_store.registry import PROVISIONAL, TRYOUT, Line
from storage.mlflow_store.version_names import VersionReference
from storage.settings import Settings

_METRICS = {
    **{name: name for name in ("reference_cost_ms", "eval_overall_ms", "eval_place_ms")},
    "prediction_error": "eval_predicted_mape",
    "gain_over_random": "eval_gain_over_random",
    **{f"gain_over_best_baseline{end}": f"eval_gain_over_best_baseline{end}" for end in ("", "_low", "_high")},
    **{f"gain_over_champion{end}": f"gain_over_champion{end}" for end in ("", "_low", "_high")},
}
"""Column -> metric of the version's run."""


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions of all algorithms, newest first.

    Returns:
        Of each: its reference, standing (in words), reference_failure (why it has no `reference_cost_ms`, or None), the
        columns of `schemas.VERSIONS`, and every metric by name.
    """
    rows = [row for algorithm in ALGORITHMS for row in _rows(settings.of(algorithm))]
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
    model = registry.find(settings, name)
    reference = registry.uri_of(model)
    rows = _rows(settings.of(VersionReference.of(reference).algorithm))
    row = next(row for row in rows if row["reference"] == reference)
    tags = {name: value for name, value in sorted(model.tags.items()) if name not in row}
    return row | {"tags": tags, "description": model.description or ""}


def write_versions(settings: Settings) -> None:
    """Write the registry to the lake as it is now, after a version or an alias changed; the caller holds its lock."""
    path = settings.lake_root / "versions" / "versions.parquet"
    table = pa.Table.from_pylist(versions(settings)[::-1], schema=schemas.VERSIONS)
    if not path.exists() or read_parquet(path) != table:
        write_parquet(path, table)


def _rows(settings: Settings) -> list[dict[str, Any]]:
    """One row per version of the algorithm, newest first."""
    models, lines = registry.all_versions(settings), {line.name: line for line in registry.lines(settings)}
    data = runs.data_of_runs(settings, [str(model.run_id) for model in models]) if models else {}
    return [_row(model, lines[model.name], *data.get(str(model.run_id), ({}, {}))) for model in models]


def _row(
    model: ModelVersion, line: Line, params: Mapping[str, str], run_metrics: Mapping[str, float]
) -> dict[str, Any]:
    text, reference, topology = {**params, **model.tags}, registry.uri_of(model), line.topology
    aliases = [alias for alias, version in line.aliases.items() if version == reference]
    metrics = {name: value for name, value in run_metrics.items() if "/" not in name}
    for tasks in (text[name] for name in ("compared_tasks", "tasks") if name in text):
        prefix = runs.of_tasks(tasks)
        metrics |= {name.removeprefix(prefix): value for name, value in run_metrics.items() if name.startswith(prefix)}
    standing = ", ".join(aliases) or ("try-out" if TRYOUT in text else "")
    is_provisional = PROVISIONAL in text and "champion" in aliases
    typed = {field.name: _typed(field.type, text.get(field.name)) for field in schemas.VERSIONS}
    created = datetime.fromtimestamp(model.creation_timestamp / 1000, UTC)
    return {
        "reference": reference,
        "standing": f"{standing}, provisional" if is_provisional else standing,
        "reference_failure": text.get("reference_failure"),
        **typed,
        "model": model.name,
        "version": int(model.version),
        "algorithm": VersionReference.of(reference).algorithm,
        "is_default": line.is_default,
        "aliases": ", ".join(aliases),
        "created_at": created.replace(tzinfo=None, microsecond=0),
        "dataset_version": text.get("dataset"),
        "testbed": topology.testbed,
        "hardware": topology.hardware,
        "devices": topology.num_devices,
        "devices_per_host": topology.devices_per_host,
        "mlflow_run": model.run_id,
        **dict(sorted(metrics.items())),
        **{column: metrics.get(metric) for column, metric in _METRICS.items()},
    }


def _typed(kind: pa.DataType, text: str | None) -> Any:
    """A tag or parameter as a column has it: None if there is none, or if it is no number (`tables_per_task: all`)."""
    if not text:
        return None
    if pa.types.is_integer(kind):
        return int(text) if text.isdigit() else None
    if pa.types.is_floating(kind):
        return float(text)
    return text if kind == pa.string() else None
