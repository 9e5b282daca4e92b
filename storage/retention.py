"""Removes old files that nothing kept refers to; a file goes before those that it refers to.

Versions go if their registered model has newer ones enough, they have no alias, no tag `pinned` and no current plan, and
nothing was decided on them lately. Kept regardless of age: whatever the tags of a kept version refer to
(`registry.REFERENCES`), and whatever a kept training or report refers to in turn. A training or evaluation is removed
completely or not at all, and stays while any file of it is young, so a running one is never touched. Lookups stay while
a kept dataset contains their table: the dataset of a version, one in use, or one ingested last of a model. Rows of
tables and tasks always stay: they are small, and other rows refer to them. Results of flow runs of this home, and files
that killed writers left, go by age alone. MLflow and Prefect manage their own data: of runs that ended 90 days ago
Prefect's server for a team keeps nothing, MLflow's everything.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from storage.filesystem import FileInfo, list_file_infos, list_files, read_json, remove
from storage.lake import catalog
from storage.lake.parquet_files import hive_values
from storage.mlflow_store import registry
from storage.mlflow_store.registry import PINNED, Version
from storage.run_records import plans, trainings
from storage.settings import RESULTS
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file that may be removed once nothing refers to it.

    Attributes:
        kind: for people, e.g. `cost samples`.
        run: key of the training or evaluation that it belongs to; empty for a file of none, which goes by its age.
        info: path, size and time.
    """

    kind: str
    run: str
    info: FileInfo


def prune(store: Store, *, older_than_days: int, keep_versions: int, delete: bool) -> list[dict[str, Any]]:
    """Find old versions and files that nothing needs, remove them if asked to, and return their numbers and bytes by kind.

    Raises:
        ValueError: what must be kept is not known (see `find_removable`); nothing has been removed.
    """
    before = datetime.now(UTC) - timedelta(days=older_than_days)
    versions = old_versions(store, before, keep_versions)
    removals = find_removable(store, before, versions)
    if delete:
        for version in versions:
            registry.remove(store, version)
        registry.write_versions(store)
        remove_files(removals)
        catalog.write_catalog(store)
    rows = [{"kind": "versions", "files": len(versions), "bytes": 0}] if versions else []
    for kind in (*dict.fromkeys(file.kind for file in removals), "all"):
        sizes = [file.info.size_bytes for file in removals if kind in (file.kind, "all")]
        rows.append({"kind": kind, "files": len(sizes), "bytes": sum(sizes)})
    return rows


def old_versions(store: Store, before: datetime, keep: int) -> list[Version]:
    """Versions beyond the newest `keep` of their registered model that nobody uses, and that `before` decided on last."""
    current = [plans.current(store, path.parent.name) for path in list_files(store.plans, "*/current.json")]
    needed = {plan.version for plan in current if plan}
    newer, old = Counter[str](), []
    for version in registry.versions(store):
        newer[version.registered_model] += 1
        changed = max(f"{version.created:%Y-%m-%d %H:%M:%S}", version.tags.get("decided_at", ""))
        is_old = newer[version.registered_model] > keep and changed < f"{before:%Y-%m-%d %H:%M:%S}"
        if is_old and not version.aliases and PINNED not in version.tags and version.uri not in needed:
            old.append(version)
    return old


def find_removable(store: Store, before: datetime, old: Collection[Version] = ()) -> list[StoredFile]:
    """Files last written before `before` that only `old` versions refer to, in the order of removal.

    Raises:
        ValueError: a file that refers to others cannot be read, or the registry is not the store's.
    """
    registry.check_identity(store)
    stored, going = list(_stored_files(store)), {version.uri for version in old}
    referenced = registry.referenced_keys(version for version in registry.versions(store) if version.uri not in going)
    runs = _kept_runs(store, stored, referenced, before)
    lookups = _kept_lookups(store, stored, runs | referenced, before)
    return [
        file
        for file in stored
        if (file.run not in runs if file.run else file.info.modified < before and file.info.path.name not in lookups)
    ]


def remove_files(removals: Sequence[StoredFile]) -> None:
    """Remove files in the given order; after an interruption, `find_removable` finds the rest."""
    for _, group in groupby(removals, key=lambda file: file.kind):
        paths = [file.info.path for file in group]
        remove(paths)
        for folder in {path.parent for path in paths if isinstance(path, Path)}:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _stored_files(store: Store) -> Iterator[StoredFile]:
    """All files that may go, in the order of removal: files that refer to others come before those."""
    lake = store.lake.root
    of_runs = {
        "reports": (store.evaluations, "**/*.json"),
        "evaluations": (lake / "evaluations", "**/*.parquet"),
        "checkpoints": (store.checkpoints, "*/[!.]*"),
        "cost samples": (lake / "cost_samples", "**/*.parquet"),
    }
    for kind, (folder, pattern) in of_runs.items():
        for info in list_file_infos(folder, pattern):
            path = info.path
            run = path.parent.name if kind == "checkpoints" else unquote(path.name.split(".")[0])
            yield StoredFile(kind=kind, run=run, info=info)
    others = [
        ("sample buffer", lake / "sample_buffer", "*.parquet"),
        *(("unfinished", root, "**/*.tmp") for root in (store.evaluations, store.checkpoints, lake)),
        ("lookups", lake / "lookups", "*.parquet"),
        ("plan pages", store.plans, "**/*.html"),
        ("results of runs", store.home / RESULTS, "*"),
    ]
    for kind, folder, pattern in others:
        for info in list_file_infos(folder, pattern):
            yield StoredFile(kind=kind, run="", info=info)


def _kept_runs(store: Store, stored: Sequence[StoredFile], referenced: Collection[str], before: datetime) -> set[str]:
    """Keys of the trainings and evaluations that stay."""
    known = {file.run for file in stored if file.run}
    new = {file.run for file in stored if file.run and file.info.modified >= before} | known.intersection(referenced)
    kept: set[str] = set()
    while new:
        kept |= new
        references = {key for file in stored if file.run in new for key in _references(store, file)}
        new = known & references - kept
    return kept


def _references(store: Store, file: StoredFile) -> Collection[str]:
    """Keys of the trainings and evaluations that a file refers to."""
    if file.kind == "reports":  # a report names its training; `newest/<training>.json` names the report
        content = read_json(file.info.path)
        return [content[field] for field in ("key", "training") if field in content]
    if file.info.path.name == trainings.RECORD:
        warm = trainings.read(store, file.run).warm
        return warm.trainings if warm else ()
    return ()


def _kept_lookups(store: Store, stored: Sequence[StoredFile], keys: Collection[str], before: datetime) -> set[str]:
    """Names of the lookups files that stay.

    Args:
        keys: keys of runs and datasets that stay.
    """
    lake = store.lake
    paths = [file.info.path for file in stored if file.run in keys and file.kind in ("evaluations", "cost samples")]
    paths += [
        info.path
        for folder in ("tables", "tasks")
        for info in list_file_infos(lake.root / folder, "**/*.parquet")
        if info.modified >= before
    ]
    newest = [read_json(path)["dataset"] for path in list_files(lake.root / "tables", "_newest.*.json")]
    known = filter(lake.has_dataset, {*keys, *newest, *(hive_values(path)["dataset_version"] for path in paths)})
    return {Path(file).name for dataset in known for file in lake.lookups_files(dataset).values()}
