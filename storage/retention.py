"""What may go: files older than asked that nothing kept refers to, in an order in which a kill leaves a readable lake.

Kept, however old: whatever a registered version names in its tags (training, dataset, evaluation, by their keys), and
whatever a kept training or report names in turn. A training or an evaluation goes as a whole or not at all, and stays
while any file of it is young: one that is running is never touched. Lookups stay while a kept dataset has their table: a
version's, one that is in use, or the one ingested last. The rows that describe tables and tasks and the costs of single
shards stay: they are small, and other rows refer to them. MLflow's and Prefect's data are theirs.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from storage.filesystem import FileInfo, list_file_infos, remove
from storage.lake.parquet_files import read_parquet
from storage.mlflow_store import registry
from storage.settings import Settings, home_registry
from storage.store import Store

KINDS = ("reports", "evaluations", "checkpoints", "cost samples", "sample_buffer", "unfinished", "lookups")
"""In the order of removal: what refers to others before what it refers to."""

_LEFTOVERS = ("sample_buffer", "unfinished")  # what killed writers left: they go by their age alone
_OF_DATASETS = ("evaluations", "cost samples")
_KEY = re.compile(r"[0-9a-f]{16}")
_ITERATION = re.compile(r"iteration_(\d+)\..*")
_DATASET = re.compile(r"dataset_version=([^/]+)")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file that may go.

    Attributes:
        kind: one of `KINDS`.
        run: key of the training or evaluation that it belongs to; empty for lookups and unfinished files.
        entry: the file.
    """

    kind: str
    run: str
    entry: FileInfo


def plan(store: Store, before: datetime) -> list[Stored]:
    """What may go of what was last written before `before`, in the order of removal.

    Raises:
        ValueError: a file that says what is kept cannot be read, or the versions of those who share the store are not
            known here.
    """
    _check_registry(store.settings)
    stored = list(_stored(store))
    named = registry.named_in_tags(store.settings)
    runs = _kept_runs(stored, named, before)
    lookups = _kept_lookups(store, stored, runs, named, before)

    def goes(each: Stored) -> bool:
        if each.run and each.kind not in _LEFTOVERS:
            return each.run not in runs
        return each.entry.modified < before and each.entry.path.name not in lookups

    return sorted(filter(goes, stored), key=_order)


def _check_registry(settings: Settings) -> None:
    own = settings.tracking_uri == home_registry(settings.home)
    if own and settings.store_root != settings.home:
        raise ValueError(
            f"the store {settings.store_root} is shared, and the registry is this home's own ({settings.tracking_uri}), "
            "which does not know which versions others have registered, so what these need would be removed; set "
            "MLFLOW_TRACKING_URI to the server or database of all who use the store"
        )


def carry_out(removals: Sequence[Stored]) -> None:
    """Remove the files in their order; stopped half-way, the next plan has the rest."""
    for _, group in groupby(removals, key=lambda each: _order(each)[:-1]):
        places = [each.entry.path for each in group]
        remove(places)
        for folder in {place.parent for place in places if isinstance(place, Path)}:
            with suppress(OSError):  # it still holds something
                folder.rmdir()


def totals(removals: Sequence[Stored]) -> list[dict[str, Any]]:
    """Files and bytes by kind, and of all."""
    rows = []
    for kind in (*KINDS, "all"):
        sizes = [each.entry.size_bytes for each in removals if kind in (each.kind, "all")]
        rows.append({"kind": kind, "files": len(sizes), "bytes": sum(sizes)})
    return rows


def _stored(store: Store) -> Iterator[Stored]:
    """Every file that might go."""
    lake = store.lake.root
    for reports in (store.evaluations, store.comparisons):
        for entry in list_file_infos(reports, "**/*.json"):
            yield Stored(kind="reports", run=entry.path.stem, entry=entry)
    for entry in list_file_infos(store.checkpoints, "*/*"):
        if entry.path.suffix != ".tmp":
            yield Stored(kind="checkpoints", run=entry.path.parent.name, entry=entry)
    for folder in ("evaluations", "cost_samples", "sample_buffer"):
        for entry in list_file_infos(lake / folder, "**/*.parquet"):
            run = unquote(entry.path.name.split(".")[0])
            yield Stored(kind=folder.replace("_", " "), run=run, entry=entry)
    for entry in list_file_infos(lake / "lookups", "*.parquet"):
        yield Stored(kind="lookups", run="", entry=entry)
    for root in (store.evaluations, store.comparisons, store.checkpoints, lake):
        for entry in list_file_infos(root, "**/*.tmp"):
            yield Stored(kind="unfinished", run="", entry=entry)


def _order(each: Stored) -> tuple[Any, ...]:
    """A training's states go before its samples, the last iteration first: what is left is a shorter training."""
    place = each.entry.path
    iteration = _ITERATION.fullmatch(place.name)
    last_first = -int(iteration[1]) if iteration else -(10**6) if place.suffix == ".zip" else 1
    points_to = place.parent.name != "newest"  # which of a training's reports is the newest
    return KINDS.index(each.kind), points_to, each.run, last_first, place.suffix != ".zip", str(place)


def _kept_runs(stored: Sequence[Stored], named: Collection[str], before: datetime) -> set[str]:
    """Keys of the trainings and evaluations that stay."""
    known = {each.run for each in stored if each.run}
    fresh = {each.run for each in stored if each.run in known and each.entry.modified >= before} | known.intersection(
        named
    )
    kept: set[str] = set()
    while fresh:
        kept |= fresh
        texts = [each.entry.path for each in stored if each.run in fresh and _may_name_others(each)]
        fresh = known.intersection(key for text in texts for key in _KEY.findall(text.read_text())) - kept
    return kept


def _may_name_others(each: Stored) -> bool:
    """Reports name their training, and a training that went on from another says so beside its states."""
    name = each.entry.path.name
    return each.kind in ("reports", "checkpoints") and name.endswith(".json") and not _ITERATION.fullmatch(name)


def _kept_lookups(
    store: Store, stored: Sequence[Stored], runs: Collection[str], named: Collection[str], before: datetime
) -> set[str]:
    """Names of the lookups files that stay."""
    lake = store.lake
    written = list_file_infos(lake.root / "tables", "**/tables.parquet")
    in_use = [each.entry for each in stored if each.run in runs and each.kind in _OF_DATASETS]
    in_use += [entry for entry in list_file_infos(lake.root / "tasks", "**/*.parquet") if entry.modified >= before]
    in_use += [entry for entry in written if entry.modified >= before]
    kept = {*named, *lake.dataset_versions()[-1:], *map(_dataset, in_use)}
    tables = [read_parquet(entry.path, ["lookups_file"]) for entry in written if _dataset(entry) in kept]
    return {Path(file).name for table in tables for file in table.column("lookups_file").to_pylist()}


def _dataset(entry: FileInfo) -> str:
    """The dataset version in a file's path."""
    found = _DATASET.search(str(entry.path))
    return unquote(found[1]) if found else ""
