"""What tells a version from others: parameters of its run, which MLflow compares, and its name, made of them."""

from dreamshard.workloads.dataset_diff import DatasetDiff, diff_datasets
from storage.mlflow_store.version_names import number_of
from storage.run_records import lineage
from storage.run_records.lineage import ALL_TABLES, Origin, Version
from storage.store import Store

UNCHANGED = "unchanged"
"""The difference of tables that are the same as those of the version before."""


def source_label(source: str) -> str:
    """The last part of a path or address, or a bundled source's name: `tables.csv`."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def version_name(version: str, origin: Origin, table_diff: str) -> str:
    """What a version is, in a few words: `v4 tables.csv +3 -2, warm from v3`."""
    start = f"warm from v{number_of(origin.warm.version)}" if origin.warm else "from nothing"
    return f"v{number_of(version)} {' '.join(filter(None, [source_label(origin.source), table_diff]))}, {start}"


def facts(store: Store, training: str, origin: Origin, iterations: int) -> dict[str, str]:
    """Parameters of the run of a version; empty if there is nothing to state. `testbed` and `seed` are the recipe's.

    Args:
        training: key of the training.
        origin: what it was made of.
        iterations: that were really run.
    """
    before = _version_before(store, training, origin)
    tables, known = store.lake.read_dataset(origin.dataset), store.lake.dataset_versions()
    is_known = before is not None and before.origin.dataset in known
    earlier = store.lake.read_dataset(before.origin.dataset) if before is not None and is_known else None
    setting = origin.setting
    return {
        **{name: str(setting[name]) for name in ("hardware", "devices", "precision", "optimizer")},
        "devices_per_host": str(setting.get("devices per host", "")),
        "tables_per_task": str(setting["tables per task"]),
        "batch_size": str(setting["batch"]),
        "algorithm": origin.algorithm,
        "source": origin.source,
        "dataset": origin.dataset,
        "tables": str(len(tables)),
        "table_diff": diff_label(diff_datasets(earlier, tables)),
        "table_diff_from": before.version if before is not None else "",
        "mode": "fixed" if setting["tables per task"] == ALL_TABLES else "pool",
        "memory_gb": "" if origin.memory_bytes is None else f"{origin.memory_bytes / 2**30:.4g}",
        "iterations": str(iterations),
        "warm_from": str(number_of(origin.warm.version)) if origin.warm else "",
    }


def diff_label(diff: DatasetDiff) -> str:
    """Tables added, removed and changed: `+3 -2 ~1`, only those there are; empty without an earlier data set."""
    if diff.num_before == 0:
        return ""
    counts = diff.counts
    signs = {"+": counts["added"], "-": counts["removed"], "~": counts["resized"] + counts["drifted"]}
    return " ".join(f"{sign}{count}" for sign, count in signs.items() if count) or UNCHANGED


def _version_before(store: Store, training: str, origin: Origin) -> Version | None:
    """The version that the training started from; of one from nothing, the newest other one of the same source."""
    others = [version for version in lineage.versions(store) if version.training != training]
    if origin.warm is not None:
        return next((version for version in others if version.version == origin.warm.version), None)
    return next((version for version in others if version.origin.source == origin.source), None)
