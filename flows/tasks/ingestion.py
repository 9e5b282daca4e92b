"""Ingestion: bring the tables of a source that are new or changed, and their lookups, into the lake."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prefect import get_run_logger

from dreamshard.tables import Tables, concatenate
from dreamshard.workloads import WorkloadConfig, dataset_version, statistics
from flows.runtime import sources, task_runners
from flows.runtime.content_keys import content_key
from flows.runtime.progress import announce, publish_progress, report_progress
from flows.runtime.retries import retried_task
from flows.runtime.sources import opened_source
from storage.lake.ingested import Ingested, keep_ingested, keep_source, known_tables, read_source
from storage.store import Store

LOOKUPS_PER_TASK = 2**25
USUAL_POOLING = 16
MOST_TABLES_PER_TASK = 64
"""Makes a Prefect task take seconds; its own overhead is milliseconds."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """The current content of a source, and which part of it has been ingested.

    Attributes:
        workload: names the source; a path in it is absolute.
        token: identity of what the source holds (`token_of`).
        names: names of the source's tables, in its order.
        fingerprints: one per table.
        known: the unchanged tables, which are in the lake, by fingerprint.
    """

    workload: WorkloadConfig
    token: str
    names: tuple[str, ...]
    fingerprints: tuple[str, ...]
    known: Mapping[str, Tables]

    @property
    def changed(self) -> tuple[int, ...]:
        """Positions of the tables that are new or changed."""
        return tuple(t for t, fingerprint in enumerate(self.fingerprints) if fingerprint not in self.known)


def read_source_state(store: Store, workload: WorkloadConfig) -> SourceState:
    """Find out what a source holds now and what of it is in the lake; generates no lookups.

    Files that have not changed are only listed; otherwise they are opened, and data files are read once. Functions are
    called each time.

    Raises:
        ValueError: there is no such source, or it cannot be read.
    """
    workload = sources.with_absolute_paths(workload)
    token = sources.token_of(workload)
    key = content_key(workload, token)
    source = read_source(store.lake, key)
    if source is None:
        opened = opened_source(workload, token)
        fingerprints = (opened.fingerprint(t) for t in range(opened.num_tables))
        source = opened.names, tuple(content_key(each) for each in fingerprints)
        keep_source(store.lake, key, *source)
    names, fingerprints_by_table = source
    known = known_tables(store.lake, fingerprints_by_table)
    return SourceState(workload=workload, token=token, names=names, fingerprints=fingerprints_by_table, known=known)


def ingest_workload(
    store: Store, workload: WorkloadConfig, name: str | None = None, *, newest: bool = True
) -> Ingested:
    """Bring new and changed tables of a source into the lake, and the dataset of all its tables.

    Args:
        name: name of the dataset for people; by default that of the source.
        newest: let stages that name no dataset take this one.

    Raises:
        ValueError: there is no such source, or it is invalid.
    """
    state = read_source_state(store, workload)
    notes = sources.notes_on(state.workload)
    for note in notes:
        announce(note)
    changed, total = state.changed, len(state.names)
    done = reused = total - len(changed)

    def finished(name: str, count: int) -> None:
        nonlocal done
        done += count
        if done < total:
            report_progress("ingest", done, total, name)

    tables = _bring_in(store, state, finished)
    version = dataset_version(tables)
    store.lake.write_dataset(tables, version, name or workload.source, newest=newest)
    publish_progress("ingest", total, total, f"tables, {len(changed)} new, {reused} re-used")
    return Ingested(dataset=version, new=len(changed), reused=reused, notes=notes)


def ingest_reference(store: Store, workload: WorkloadConfig, name: str) -> str:
    """Bring tables to compare by into the lake; returns their dataset, which never counts as the newest.

    Args:
        name: of the dataset for people.
    """
    tables = _bring_in(store, read_source_state(store, workload), lambda _name, _count: None)
    version = dataset_version(tables)
    store.lake.write_dataset(tables, version, name, newest=False)
    return version


def _bring_in(store: Store, state: SourceState, finished: Callable[[str, int], None]) -> Tables:
    """Ingest the new and changed tables of a source, some per Prefect task; returns all of its tables.

    Args:
        finished: called with the name of the last table of each part and the number of its tables.
    """
    changed = state.changed
    size = max(1, min(MOST_TABLES_PER_TASK, LOOKUPS_PER_TASK // (state.workload.batch_size * USUAL_POOLING)))
    parts = [changed[start : start + size] for start in range(0, len(changed), size)]
    calls = [
        {
            "store": store,
            "workload": state.workload,
            "token": state.token,
            "fingerprints": {t: state.fingerprints[t] for t in part},
        }
        for part in parts
    ]

    try:
        task_runners.run_all(
            ingest_tables, calls, lambda position, count: finished(state.names[parts[position][-1]], count)
        )
    finally:
        sources.close()
    known = known_tables(store.lake, state.fingerprints) if changed else state.known
    return concatenate([known[fingerprint] for fingerprint in state.fingerprints])


@retried_task("ingest tables", persist_result=False)
def ingest_tables(store: Store, workload: WorkloadConfig, token: str, fingerprints: Mapping[int, str]) -> int:
    """Some tables of a source -> lookups and their statistics in the lake; returns the number of tables.

    Args:
        store: may be that of another machine.
        token: `token_of` the source when its state was read.
        fingerprints: tables to ingest: fingerprint by position in the source.
    """
    source = opened_source(workload, token)
    parts: list[Tables] = []
    for position in fingerprints:
        table = source.table(position)
        parts.append(statistics(table))
        store.lake.write_table_lookups(table, parts[-1])
    keep_ingested(store.lake, list(fingerprints.values()), concatenate(parts))
    get_run_logger().info("ingested %s of %s", ", ".join(part.names[0] for part in parts), workload.source)
    return len(parts)
