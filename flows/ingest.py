"""Tables and their lookups into the lake: those of a source that are new or changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefect import flow

from dreamshard.tables import Tables, concatenate
from dreamshard.workloads import WorkloadConfig, dataset_version, shipped, source_mark
from dreamshard.workloads.published import META_WORKLOADS
from flows import steps, task_runners, tracking
from flows.caching import content_key, workloads_hash
from flows.form import form
from flows.measuring import lake
from flows.parameters import DatasetName, RecipeName, Source, configure
from flows.progress import advance, publish
from storage.ingested import keep_source, known_tables, read_source

RECORDED = (".pt", ".pt.gz", ".tsv", ".tsv.gz", *META_WORKLOADS)
"""How sources end that have samples of their own; for lists of tables as many are generated as asked for."""

LOOKUPS_PER_TASK = 2**25
USUAL_POOLING = 16
MOST_TABLES_PER_TASK = 64
"""So many tables to a task that it takes seconds: what a task itself costs is milliseconds."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """A source as it is now beside what was ingested of it before.

    Attributes:
        workload: names the source; a path in it is absolute.
        mark: of the source's files (`source_mark`).
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


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """What ingesting a source came to.

    Attributes:
        dataset: version.
        new: tables that were new or changed.
        reused: tables whose lookups and statistics were in the lake.
    """

    dataset: str
    new: int
    reused: int


def look(workload: WorkloadConfig) -> SourceState:
    """What a source holds now, and what of it is in the lake; no lookups are generated.

    While no file of the source changed its files are only listed; else they are opened, and data files read once.

    Raises:
        ValueError: there is no such source, or it cannot be read.
    """
    path = Path(workload.source)
    is_path = workload.source not in shipped() and path.exists()
    given = replace(workload, source=str(path.absolute())) if is_path else workload
    mark = source_mark(given.source)
    key = content_key(given, mark)
    found = read_source(lake(), key)
    if found is None:
        opened = steps.opened(given, mark)
        fingerprints = (opened.fingerprint(t) for t in range(opened.num_tables))
        found = opened.names, tuple(content_key(each, workloads_hash(), library=False) for each in fingerprints)
        keep_source(lake(), key, *found)
    names, marks = found
    return SourceState(workload=given, mark=mark, names=names, fingerprints=marks, known=known_tables(lake(), marks))


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
            "target": lake(),
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
        task_runners.run_all(steps.ingest_tables, calls, finished)
    finally:
        steps.opened.cache_clear()
    known = known_tables(lake(), state.fingerprints) if changed else state.known
    tables = concatenate([known[fingerprint] for fingerprint in state.fingerprints])
    version = dataset_version(tables)
    lake().write_dataset(tables, version, name or workload.source)
    publish("ingest", total, total, f"tables, {len(changed)} new, {reused} re-used")
    return Ingested(dataset=version, new=len(changed), reused=reused)


@form
@flow(name="ingest", persist_result=True, result_serializer="json")
def ingest(recipe: RecipeName = "default", source: Source = None, name: DatasetName = None) -> dict[str, Any]:
    """Source -> lookups, tables and a dataset version in the lake."""
    config = configure(recipe, source=source)
    with tracking.chain("ingest", config, config.workload.seed) as chain, chain.stage("ingest") as run:
        ingested = ingest_workload(config.workload, name)
        tracking.log_ingested(run, ingested, config.workload.source)
    dataset = ingested.dataset
    tables = lake().read_dataset(dataset)
    samples = lake().lookup_source(dataset)(tables.names[0]).batch_size
    outcome: dict[str, Any] = {
        "dataset": dataset,
        "tables": len(tables),
        "new_tables": ingested.new,
        "reused_tables": ingested.reused,
        "samples": samples,
        "lookups": int(tables.lookups.sum()),
        "distinct_rows": int(tables.unique_rows.sum()),
        "gib_fp32": round(float(tables.memory_bytes("fp32", "sgd").sum()) / 2**30, 3),
    }
    if samples == config.workload.batch_size and config.workload.source.endswith(RECORDED):
        outcome["note"] = f"recipe {config.name} takes no more than the first {samples} samples of a source"
    return outcome
