"""Versions side by side for people: origin, figures, and why each is or is not in use."""

import time
from collections.abc import Mapping
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from dreamshard.names import ALGORITHMS, VersionReference
from storage.mlflow_store import heldout_metrics, registry, runs
from storage.mlflow_store.alias_history import CHANGES_TAG, history
from storage.mlflow_store.standings import PROVISIONAL, TRYOUT, champions_among, topology_name
from storage.settings import Settings

WHAT = (
    *("algorithm", "name", "source", "tables", "table_diff", "hardware", "devices", "devices_per_host", "memory_gb"),
    *("tables_per_task", "mode", "iterations", "warm_from", "reference_set", "reference_batch_size"),
)
"""Tags of a version that say what it is."""

FACTS = (
    *("dataset", "precision", "optimizer", "batch_size", "libraries"),
    *("testbed", "recipe", "seed", "commit"),
)
"""Tags of a version and of its run that state its origin."""


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions of all algorithms, newest first.

    Returns:
        Of each: version (a reference), aliases (without the algorithm), standing, created_at (UTC), run, champion_of,
        `WHAT`, `FACTS`, reason, reference_failure (why it has no `reference_cost_ms`, or None), and every metric by name.
    """
    if not settings.has_registry:
        return []
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
    number = registry.reference_to(model)
    (row,) = [row for row in _rows(settings.of(VersionReference.of(number).algorithm)) if row["version"] == number]
    tags = {name: value for name, value in sorted(model.tags.items()) if name not in row}
    if CHANGES_TAG in tags:
        tags["history"] = "\n".join(change.sentence for change in history(tags))
        del tags[CHANGES_TAG]
    return row | {"tags": tags, "description": model.description or ""}


def _rows(settings: Settings) -> list[dict[str, Any]]:
    """One row per version of the algorithm, newest first."""
    models = registry.all_versions(settings)
    aliases = registry.aliases(settings)
    tags = {registry.reference_to(model): model.tags for model in models}
    champions = champions_among(tags)
    metrics = runs.metrics_of_runs(settings, [str(model.run_id) for model in models])
    return [_row(settings, model, aliases, champions, metrics.get(str(model.run_id), {})) for model in models]


def _row(
    settings: Settings,
    model: ModelVersion,
    aliases: Mapping[str, str],
    champions: Mapping[str, str],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    tags, number = model.tags, registry.reference_to(model)
    own = [alias for alias, version in aliases.items() if version == number]
    topology = topology_name(tags)
    measured_on = [tags[name] for name in ("compared_tasks", "tasks") if name in tags]
    is_champion = topology is not None and champions.get(topology) == number
    standing = ", ".join(own) or (f"champion of {topology}" if is_champion else "try-out" if TRYOUT in tags else "")
    if tags.get(PROVISIONAL) and (is_champion or "champion" in own):
        standing += ", provisional"
    return {
        "version": number,
        "aliases": ", ".join(own),
        "standing": standing,
        "created_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(model.creation_timestamp / 1000)),
        "run": model.run_id or None,
        "champion_of": topology if is_champion else None,
        **{name: tags.get(name) or None for name in WHAT},
        "algorithm": settings.algorithm,
        **{name: tags.get(name) for name in FACTS},
        "reason": tags.get("reason", ""),
        "reference_failure": tags.get("reference_failure"),
        **dict(sorted(heldout_metrics.plain(metrics, *measured_on).items())),
    }
