"""What tells a version from others, as its tags and as parameters that MLflow compares; and its name, made of them."""

from collections.abc import Mapping

from dreamshard.names import DEFAULT_ALGORITHM, VersionReference, number_of
from dreamshard.workloads.dataset_diff import DatasetDiff, diff_datasets
from storage.run_records import lineage
from storage.run_records.lineage import ALL_TABLES, Origin, Version
from storage.store import Store

UNCHANGED = "unchanged"
"""The difference of tables that are the same as those of the version before."""


def source_label(source: str) -> str:
    """The last part of a path or address, or a bundled source's name: `tables.csv`."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def version_name(version: str, tags: Mapping[str, str]) -> str:
    """What a version is, in a few words: `v4 tables.csv +3 -2, warm from v3`; of another algorithm, `paper v1 ...`.

    Args:
        tags: of the version, with those of `facts`.
    """
    tables = " ".join(filter(None, [source_label(tags["source"]), tags["table_diff"]]))
    own = VersionReference.of(version)
    start = f"warm from v{number_of(tags['warm_from'])}" if tags["warm_from"] else "from nothing"
    algorithm = "" if own.algorithm == DEFAULT_ALGORITHM else f"{own.algorithm} "
    return f"{algorithm}v{own.name} {tables}, {start}"


def facts(store: Store, training: str, origin: Origin, iterations: int) -> dict[str, str]:
    """Tags of a version; empty where there is nothing to state.

    Args:
        training: key of the training.
        origin: what it was made of.
        iterations: that were really run.
    """
    before = _version_before(store, training, origin)
    tables = store.lake.read_dataset(origin.dataset)
    is_known = before is not None and before.origin.dataset in store.lake.dataset_versions()
    earlier = store.lake.read_dataset(before.origin.dataset) if before is not None and is_known else None
    return {
        "algorithm": origin.algorithm,
        "source": origin.source,
        "tables": str(len(tables)),
        "table_diff": diff_label(diff_datasets(earlier, tables)),
        "table_diff_from": before.version if before is not None else "",
        "mode": "fixed" if origin.setting["tables per task"] == ALL_TABLES else "pool",
        "tables_per_task": str(origin.setting["tables per task"]),
        "memory_gb": "" if origin.memory_bytes is None else f"{origin.memory_bytes / 2**30:.4g}",
        "devices_per_host": str(origin.setting.get("devices per host", "")),
        "iterations": str(iterations),
        "warm_from": origin.warm.version if origin.warm else "",
    }


def parameters(facts: Mapping[str, str], origin: Origin, measurements: int) -> dict[str, str | int]:
    """Parameters of the run that MLflow shows for a version; `testbed` and `seed` are there from the recipe."""
    return {
        **facts,
        "dataset": origin.dataset,
        "hardware": str(origin.setting["hardware"]),
        "devices": str(origin.setting["devices"]),
        "batch_size": str(origin.setting["batch"]),
        "precision": str(origin.setting["precision"]),
        "optimizer": str(origin.setting["optimizer"]),
        "measurements": measurements,
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
