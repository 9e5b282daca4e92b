"""Ingestion: bring the tables of a source that are new or changed, and their lookups, into the lake."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.tables import Tables, concatenate
from dreamshard.workloads import (
    Workload,
    WorkloadConfig,
    bundled_workloads,
    change_token,
    dataset_version,
    open_workload,
    statistics,
)
from flows.runtime import task_runners
from flows.runtime.caching import content_key, workloads_hash
from flows.runtime.progress import advance, publish
from flows.runtime.retries import may_pass
from storage.lake import Lake, home_lake
from storage.lake.ingested import Ingested, keep_ingested, keep_source, known_tables, read_source

_BACKOFF = exponential_backoff(2)

LOOKUPS_PER_TASK = 2**25
USUAL_POOLING = 16
MOST_TABLES_PER_TASK = 64
"""So many tables to a task that it takes seconds: what a task itself costs is milliseconds."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """A source as it is now beside what was ingested of it before.

    Attributes:
        workload: names the source; a path in it is absolute.
        mark: of the source's files (`change_token`).
        names: of the source's tables, in its order.
        fingerprints: one per table.
        known: tables of the lake by fingerprint: those that are unchanged.
    """

    workload: WorkloadConfig
    mark: str
    names: tuple[str, ...]
    fingerprints: tuple[str, ...]
    known: Mapping[str, Tables]

    @property
    def changed(self) -> tuple[int, ...]:
        """Positions of the tables that are new or changed."""
        return tuple(t for t, fingerprint in enumerate(self.fingerprints) if fingerprint not in self.known)

    @property
    def unchanged(self) -> Tables | None:
        """The other tables, in the source's order, or None where there are none."""
        found = [self.known[fingerprint] for fingerprint in self.fingerprints if fingerprint in self.known]
        return concatenate(found) if found else None


def look(workload: WorkloadConfig) -> SourceState:
    """What a source holds now, and what of it is in the lake; no lookups are generated.

    While no file of the source changed its files are only listed; else they are opened, and data files read once.

    Raises:
        ValueError: there is no such source, or it cannot be read.
    """
    path = Path(workload.source)
    is_path = workload.source not in bundled_workloads() and path.exists()
    given = replace(workload, source=str(path.absolute())) if is_path else workload
    mark = change_token(given.source)
    key = content_key(given, mark)
    found = read_source(home_lake(), key)
    if found is None:
        opened = opened_source(given, mark)
        fingerprints = (opened.fingerprint(t) for t in range(opened.num_tables))
        found = opened.names, tuple(content_key(each, workloads_hash(), library=False) for each in fingerprints)
        keep_source(home_lake(), key, *found)
    names, marks = found
    return SourceState(
        workload=given, mark=mark, names=names, fingerprints=marks, known=known_tables(home_lake(), marks)
    )


def ingest_workload(workload: WorkloadConfig, name: str | None = None) -> Ingested:
    """Bring what is new or changed of a source into the lake, and the dataset that its tables are.

    Args:
        workload: names the source.
        name: what people call the data set; by default as the source.

    Raises:
        ValueError: there is no such source, or it is wrong.
    """
    state = look(workload)
    changed, total = state.changed, len(state.names)
    reused = total - len(changed)
    size = max(1, min(MOST_TABLES_PER_TASK, LOOKUPS_PER_TASK // (workload.batch_size * USUAL_POOLING)))
    parts = [changed[start : start + size] for start in range(0, len(changed), size)]
    calls = [
        {
            "target": home_lake(),
            "workload": state.workload,
            "mark": state.mark,
            "fingerprints": {t: state.fingerprints[t] for t in part},
        }
        for part in parts
    ]
    done = reused

    def finished(position: int, count: int) -> None:
        nonlocal done
        done += count
        if done < total:
            advance("ingest", done, total, state.names[parts[position][-1]])

    try:
        task_runners.run_all(ingest_tables, calls, finished)
    finally:
        opened_source.cache_clear()
    known = known_tables(home_lake(), state.fingerprints) if changed else state.known
    tables = concatenate([known[fingerprint] for fingerprint in state.fingerprints])
    version = dataset_version(tables)
    home_lake().write_dataset(tables, version, name or workload.source)
    publish("ingest", total, total, f"tables, {len(changed)} new, {reused} re-used")
    return Ingested(dataset=version, new=len(changed), reused=reused)


@lru_cache(maxsize=1)
def opened_source(workload: WorkloadConfig, mark: str) -> Workload:
    """The source, opened once in a process for all of its tables.

    Args:
        workload: names it.
        mark: `change_token` of it, so that a changed one is opened again.
    """
    return open_workload(workload)


@task(
    name="ingest tables",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=may_pass,
)
def ingest_tables(target: Lake, workload: WorkloadConfig, mark: str, fingerprints: Mapping[int, str]) -> int:
    """Some tables of a source -> lookups and what they say in the lake; returns how many.

    Args:
        target: the lake, which may be that of another machine.
        workload: names the source.
        mark: of the source when it was looked at.
        fingerprints: by position in the source: the tables to ingest.
    """
    source = opened_source(workload, mark)
    parts: list[Tables] = []
    for position in fingerprints:
        table = source.table(position)
        parts.append(statistics(table))
        target.write_table_lookups(table, parts[-1])
    keep_ingested(target, list(fingerprints.values()), concatenate(parts))
    get_run_logger().info("ingested %s of %s", ", ".join(part.names[0] for part in parts), workload.source)
    return len(parts)
