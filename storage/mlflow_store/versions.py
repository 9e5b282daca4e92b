"""Versions side by side: what each is, what it was made of and measured on, and why it is or is not in use."""

import time
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from storage.mlflow_store import registry
from storage.mlflow_store.runs import client
from storage.settings import Settings

FACTS = ("dataset", "hardware", "testbed", "recipe", "seed", "commit")
"""What a version says of its origin, as tags of it and of its run."""

WHY = ("alias", "reason", "decided_by", "decided_at", "history")
"""What a version says of its decisions, as tags of it."""


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions, newest first: version, aliases, created_at (UTC), run, `FACTS`, reason, every metric by its name."""
    names = registry.aliases(settings)
    found = [_row(settings, each, names) for each in registry.all_versions(settings)]
    columns = dict.fromkeys(name for row in found for name in row)
    return [{name: row.get(name) for name in columns} for row in found]


def version(settings: Settings, name: str) -> dict[str, Any]:
    """One version in full: as in `versions`, with all `WHY`, what else its tags say, and its description.

    Args:
        name: a version's number or an alias.

    Raises:
        ValueError: there is no such version; the message lists those there are.
    """
    found = registry.find(settings, name)
    row = _row(settings, found, registry.aliases(settings))
    told = {name: value for name, value in found.tags.items() if name not in row}
    return row | {"tags": dict(sorted(told.items())), "description": found.description or ""}


def _row(settings: Settings, found: ModelVersion, aliases: dict[str, str]) -> dict[str, Any]:
    run = client(settings).get_run(found.run_id) if found.run_id else None
    number = str(found.version)
    return {
        "version": number,
        "aliases": ", ".join(alias for alias, version in aliases.items() if version == number),
        "created_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.creation_timestamp / 1000)),
        "run": found.run_id,
        **{name: found.tags.get(name) for name in FACTS},
        "reason": found.tags.get("reason", ""),
        **(dict(sorted(run.data.metrics.items())) if run else {}),
    }
