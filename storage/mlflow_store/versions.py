"""Versions side by side for people: origin, figures, and why each is or is not in use."""

import time
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from storage.mlflow_store import registry
from storage.mlflow_store.alias_history import CHANGES_TAG, history
from storage.mlflow_store.runs import client
from storage.settings import Settings

FACTS = (
    *("dataset", "hardware", "devices", "precision", "optimizer", "batch_size", "libraries"),
    *("testbed", "recipe", "seed", "commit"),
)
"""Tags of a version and of its run that state its origin."""


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions, newest first: version, aliases, created_at (UTC), run, `FACTS`, reason, and every metric by name."""
    aliases = registry.aliases(settings)
    rows = [_row(settings, model, aliases) for model in registry.all_versions(settings)]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def version(settings: Settings, name: str) -> dict[str, Any]:
    """One version in full: the columns of `versions`, all other tags, and its description.

    Args:
        name: a version's number or an alias.

    Raises:
        ValueError: there is no such version; the message lists the existing ones.
    """
    model = registry.find(settings, name)
    row = _row(settings, model, registry.aliases(settings))
    tags = {name: value for name, value in sorted(model.tags.items()) if name not in row}
    if CHANGES_TAG in tags:
        tags["history"] = "\n".join(change.sentence for change in history(tags))
        del tags[CHANGES_TAG]
    return row | {"tags": tags, "description": model.description or ""}


def _row(settings: Settings, model: ModelVersion, aliases: dict[str, str]) -> dict[str, Any]:
    run = client(settings).get_run(model.run_id) if model.run_id else None
    number = str(model.version)
    return {
        "version": number,
        "aliases": ", ".join(alias for alias, version in aliases.items() if version == number),
        "created_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(model.creation_timestamp / 1000)),
        "run": model.run_id,
        **{name: model.tags.get(name) for name in FACTS},
        "reason": model.tags.get("reason", ""),
        **(dict(sorted(run.data.metrics.items())) if run else {}),
    }
