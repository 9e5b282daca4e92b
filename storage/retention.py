"""Removes old files that nothing kept refers to; a file goes before those that it refers to.

Kept regardless of age: whatever the tags of a registered version refer to (`registry.REFERENCES`), and whatever a kept
training or report refers to in turn. A training or evaluation is removed completely or not at all, and stays while any file
of it is young, so a running one is never touched. Lookups
stay while a kept dataset contains their table: that of a version, one in use, or the one ingested last. Rows of tables and
tasks and costs of single shards always stay: they are small, and other rows refer to them. What flow runs of this home
returned goes by age alone. MLflow and Prefect manage their own data: of runs that ended 90 days ago Prefect's server for a
team keeps nothing, MLflow's keeps everything.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from storage.filesystem import FileInfo, list_file_infos, read_json, remove
from storage.lake import catalog
from storage.lake.lake import DRIFTED
from storage.lake.parquet_files import read_parquet
from storage.mlflow_store import registry
from storage.run_records import trainings
from storage.settings import RESULTS, Settings, home_registry
from storage.store import Store

KINDS = (
    "reports",
    "evaluations",
    "checkpoints",
    "cost samples",
    "sample buffer",
    "unfinished",
    "lookups",
    "results of runs",
)
"""In the order of removal: files that refer to others come before those."""

_LEFTOVERS = ("sample buffer", "unfinished")  # of killed writers; removed by age alone
_OF_DATASETS = ("evaluations", "cost samples")


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file that may be removed once nothing refers to it.

    Attributes:
        kind: one of `KINDS`.
        run: key of the training or evaluation that it belongs to; empty for lookups and unfinished files.
        info: path, size and time.
    """

    kind: str
    run: str
    info: FileInfo


def prune(store: Store, *, older_than_days: int, delete: bool) -> list[dict[str, Any]]:
    """Find old files that nothing needs, remove them if asked to, and return their `totals`.

    Raises:
        ValueError: what must be kept is not known (see `find_removable`); nothing has been removed.
    """
    removals = find_removable(store, datetime.now(UTC) - timedelta(days=older_than_days))
    if delete:
        remove_files(removals)
        catalog.write_catalog(store.settings)
    return totals(removals)


def find_removable(store: Store, before: datetime) -> list[StoredFile]:
    """Files last written before `before` that nothing kept refers to, in the order of removal.

    Raises:
        ValueError: a file that refers to others cannot be read, or the registry does not know all versions of the store.
    """
    _check_registry(store.settings)
    stored = list(_stored_files(store))
    referenced = registry.referenced_keys(store.settings)
    runs = _kept_runs(store, stored, referenced, before)
    lookups = _kept_lookups(store, stored, runs | referenced, before)

    def is_removable(file: StoredFile) -> bool:
        if file.run and file.kind not in _LEFTOVERS:
            return file.run not in runs
        return file.info.modified < before and file.info.path.name not in lookups

    return sorted(filter(is_removable, stored), key=_order)


def remove_files(removals: Sequence[StoredFile]) -> None:
    """Remove files in the given order; after an interruption, `find_removable` finds the rest."""
    for _, group in groupby(removals, key=lambda file: file.kind):
        paths = [file.info.path for file in group]
        remove(paths)
        for folder in {path.parent for path in paths if isinstance(path, Path)}:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


def totals(removals: Sequence[StoredFile]) -> list[dict[str, Any]]:
    """Number of files and bytes by kind, and of all."""
    rows = []
    for kind in (*KINDS, "all"):
        sizes = [file.info.size_bytes for file in removals if kind in (file.kind, "all")]
        rows.append({"kind": kind, "files": len(sizes), "bytes": sum(sizes)})
    return rows


def _check_registry(settings: Settings) -> None:
    if settings.tracking_uri == home_registry(settings.home) and settings.store_root != settings.home:
        raise ValueError(
            f"the store {settings.store_root} is shared, and the registry is this home's own ({settings.tracking_uri}), "
            "which does not know which versions others have registered, so files that these need would be removed; set "
            "MLFLOW_TRACKING_URI to the server or database of all who use the store"
        )


def _stored_files(store: Store) -> Iterator[StoredFile]:
    lake = store.lake.root
    for info in list_file_infos(store.evaluations, "**/*.json"):
        yield StoredFile(kind="reports", run=info.path.stem, info=info)
    for info in list_file_infos(store.checkpoints, "*/*"):
        if info.path.suffix != ".tmp":
            yield StoredFile(kind="checkpoints", run=info.path.parent.name, info=info)
    for kind in ("evaluations", "cost samples", "sample buffer"):
        for info in list_file_infos(lake / kind.replace(" ", "_"), "**/*.parquet"):
            yield StoredFile(kind=kind, run=unquote(info.path.name.split(".")[0]), info=info)
    for info in list_file_infos(lake / "lookups", "*.parquet"):
        yield StoredFile(kind="lookups", run="", info=info)
    for info in list_file_infos(store.settings.home / RESULTS, "*"):
        yield StoredFile(kind="results of runs", run="", info=info)
    for root in (store.evaluations, store.checkpoints, lake):
        for info in list_file_infos(root, "**/*.tmp"):
            yield StoredFile(kind="unfinished", run="", info=info)


def _order(file: StoredFile) -> tuple[int, str]:
    """By kind, so that a file goes before those that it refers to."""
    return KINDS.index(file.kind), str(file.info.path)


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
    if file.kind == "checkpoints" and file.info.path.name == trainings.RECORD:
        warm = trainings.read(store, file.run).warm
        return warm.trainings if warm else ()
    return ()


def _kept_lookups(store: Store, stored: Sequence[StoredFile], keys: Collection[str], before: datetime) -> set[str]:
    """Names of the lookups files that stay.

    Args:
        keys: keys of runs and datasets that stay.
    """
    lake = store.lake
    tables = list_file_infos(lake.root / "tables", "**/tables.parquet")
    in_use = [file.info for file in stored if file.run in keys and file.kind in _OF_DATASETS]
    in_use += [info for info in list_file_infos(lake.root / "tasks", "**/*.parquet") if info.modified >= before]
    in_use += [info for info in tables if info.modified >= before]
    datasets = {*keys, *filter(None, [lake.newest_dataset()]), *map(_dataset, in_use)}
    tables += list_file_infos(lake.root / DRIFTED, "**/*.parquet")
    kept = [read_parquet(info.path, ["lookups_file"]) for info in tables if _dataset(info) in datasets]
    return {Path(name).name for rows in kept for name in rows.column("lookups_file").to_pylist()}


def _dataset(info: FileInfo) -> str:
    """The dataset version in the path of a file."""
    return next(part.partition("=")[2] for part in info.path.parts if part.startswith("dataset_version="))
