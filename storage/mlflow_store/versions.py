"""Versions side by side for people: origin, figures, and why each is or is not in use."""

import json
import time
from typing import Any

from dreamshard.names import ALGORITHMS, Algorithm
from dreamshard.version_references import VersionReference
from storage.mlflow_store import heldout_metrics, listing
from storage.mlflow_store.alias_history import CHANGES_TAG, history
from storage.mlflow_store.listing import VersionEntry
from storage.mlflow_store.standings import PROVISIONAL, TRYOUT, champions_among, topology_name
from storage.settings import Settings

WHAT = (
    *("algorithm", "name", "source", "tables", "table_diff", "hardware", "devices", "devices_per_host", "memory_gb"),
    *("tables_per_task", "mode", "iterations", "warm_from", "reference_set", "reference_batch_size"),
)
"""Tags of a version that say what it is; older versions lack some."""

FACTS = (
    *("dataset", "precision", "optimizer", "batch_size", "libraries"),
    *("testbed", "recipe", "seed", "commit"),
)
"""Tags of a version and of its run that state its origin."""

_WARM_START = "warm_start_from"  # what earlier releases called `warm_from`; their origin says it as well


def versions(settings: Settings) -> list[dict[str, Any]]:
    """All versions of all algorithms, newest first.

    Returns:
        Of each: version (a reference), aliases (without the algorithm), standing, created_at (UTC), run, champion_of,
        `WHAT`, `FACTS`, reason, reference_failure (why it has no `reference_cost_ms`, or None), and every metric by name.
    """
    found = listing.read(settings)
    champions = _champions(found)
    rows = [_row(entry, found.aliases, champions[entry.algorithm]) for entry in found.versions]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def champions(settings: Settings) -> dict[str, str]:
    """The algorithm's champion of every topology, without importing MLflow: topology in words to version."""
    return _champions(listing.read(settings))[settings.algorithm]


def version(settings: Settings, name: str) -> dict[str, Any]:
    """One version in full: the columns of `versions`, all other tags, and its description.

    Args:
        name: a reference to it.

    Raises:
        ValueError: there is no such version; the message lists the existing ones.
    """
    found = listing.read(settings)
    entry = found.find(name, settings.tracking_uri)
    row = _row(entry, found.aliases, _champions(found)[entry.algorithm])
    tags = {name: value for name, value in sorted(entry.tags.items()) if name not in (*row, _WARM_START)}
    if CHANGES_TAG in tags:
        tags["history"] = "\n".join(change.sentence for change in history(tags))
        del tags[CHANGES_TAG]
    return row | {"tags": tags, "description": entry.description}


def _champions(found: listing.Listing) -> dict[Algorithm, dict[str, str]]:
    """The champions of each algorithm: topology in words to version."""
    each = {algorithm: found.of(algorithm) for algorithm in ALGORITHMS}
    return {
        algorithm: champions_among(own.tags, own.aliases.get(str(VersionReference(algorithm, "champion"))))
        for algorithm, own in each.items()
    }


def _row(entry: VersionEntry, aliases: Any, champions: dict[str, str]) -> dict[str, Any]:
    tags, number = entry.tags, entry.version
    own = [VersionReference.of(alias).name for alias, version in aliases.items() if version == number]
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
        "created_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.created_ms / 1000)),
        "run": entry.run,
        "champion_of": topology if is_champion else None,
        **_what(tags),
        "algorithm": entry.algorithm,
        **{name: tags.get(name) for name in FACTS},
        "reason": tags.get("reason", ""),
        "reference_failure": tags.get("reference_failure"),
        **dict(sorted(heldout_metrics.plain(entry.metrics, *measured_on).items())),
    }


def _what(tags: Any) -> dict[str, str | None]:
    """The tags `WHAT`; those of older versions from their origin, as far as it says."""
    origin = json.loads(tags["origin"]) if "origin" in tags else {}
    setting, room = origin.get("setting", {}), origin.get("memory_bytes")
    derived = {
        "devices": setting.get("devices"),
        "devices_per_host": setting.get("devices per host"),
        "memory_gb": None if room is None else f"{room / 2**30:g}",
        "tables_per_task": setting.get("tables per task"),
        "warm_from": (origin.get("warm") or {}).get("version"),
    }
    known = {name: value for name, value in derived.items() if value is not None}
    return {name: tags.get(name) or (str(known[name]) if name in known else None) for name in WHAT}
