"""New and changed tables of a source, and their lookups, into the lake.

Many small Prefect tasks do it, in threads of this process or on a Ray cluster, by `DREAMSHARD_TASK_RUNNER`:

    threads                 one thread per core; the default
    ray:ray://HOST:PORT     a running Ray cluster; `ray:auto` is the cluster of this machine

Ray's workers need this package, the lake at the same address, and Prefect's server (`PREFECT_API_URL`). They receive
references and write to the lake themselves.
"""

import os
from collections.abc import Mapping
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from dreamshard.tables import Tables, concatenate
from dreamshard.workloads import WorkloadConfig, statistics
from flows.forms.form import deployed
from flows.forms.options import IngestOptions
from flows.rules.warm_start import opened
from flows.runtime import sources
from flows.runtime.sources import opened_source
from flows.runtime.tasks import announce, content_key, report_progress, retried_task
from flows.stages import running
from storage.lake.lake import Ingested, keep_part, keep_state, known_tables, read_fingerprints
from storage.mlflow_store.runs import Run
from storage.run_records.trainings import named_model
from storage.store import Store

VARIABLE = "DREAMSHARD_TASK_RUNNER"
LOOKUPS_PER_TASK = 2**25
USUAL_POOLING = 16
MOST_TABLES_PER_TASK = 64
"""Makes a Prefect task take seconds; its own overhead is milliseconds."""


@deployed
def ingest(options: IngestOptions) -> dict[str, Any]:
    """Source -> lookups, tables and a dataset version in the lake."""
    config, store = opened(options)
    with running(store, "ingest", config, config.workload.seed) as run:
        ingested = ingest_workload(store, config.workload, named_model(config))
        log_ingested(run, ingested, config.workload.source)
    tables = ingested.tables
    return {
        "dataset": ingested.dataset,
        "tables": len(tables),
        "new_tables": ingested.new,
        "reused_tables": ingested.reused,
        "samples": store.lake.lookup_source(ingested.dataset)(tables.names[0]).batch_size,
        "lookups": int(tables.lookups.sum()),
        "distinct_rows": int(tables.unique_rows.sum()),
        "gib_fp32": round(4 * int((tables.rows * tables.dim).sum()) / 2**30, 3),
        "notes": list(ingested.notes),
    }


def ingest_workload(
    store: Store, workload: WorkloadConfig, model: str | None = None, *, lookups: bool = True
) -> Ingested:
    """Bring new and changed tables of a source into the lake, some per Prefect task, and the dataset of all its tables.

    Args:
        model: whose dataset is written, so that stages that name none take it; None to return it only.
        lookups: keep them as well as their statistics; a simulated testbed needs none.
    """
    token = sources.token_of(workload)
    key, source = content_key(workload, token), opened_source(workload, token)
    fingerprints = read_fingerprints(store.lake, key)
    if fingerprints is None:
        fingerprints = [content_key(source.fingerprint(t)) for t in range(len(source.listed))]
    known = known_tables(store.lake, workload.source, key, fingerprints, lookups=lookups)
    changed, total = [t for t, fingerprint in enumerate(fingerprints) if fingerprint not in known], len(fingerprints)
    for note in source.notes:
        announce(note)
    size = max(1, min(MOST_TABLES_PER_TASK, LOOKUPS_PER_TASK // (workload.batch_size * USUAL_POOLING)))
    wanted = [{t: fingerprints[t] for t in changed[n : n + size]} for n in range(0, len(changed), size)]
    same = {"store": store, "workload": workload, "token": token, "key": key, "lookups": lookups}
    try:
        if wanted:
            with task_runner() as runner:
                futures = [runner.submit(ingest_tables, parameters=same | {"fingerprints": part}) for part in wanted]
                done = total - len(changed)
                for future in futures:
                    done += future.result()
                    if done < total:
                        report_progress("ingest", done, total, "tables")
            known = known_tables(store.lake, workload.source, key, fingerprints, lookups=lookups)
    finally:
        sources.close()
    tables = concatenate([known[fingerprint] for fingerprint in fingerprints])
    keep_state(store.lake, workload.source, key, fingerprints, tables)
    if model is not None:
        store.lake.write_dataset(tables, workload.source, model)
        report_progress("ingest", total, total, f"tables, {len(changed)} new, {total - len(changed)} re-used")
    return Ingested(tables=tables, new=len(changed), reused=total - len(changed), notes=source.notes)


@retried_task("log tables")
def log_ingested(run: Run, ingested: Ingested, source: str) -> None:
    """The tables as an input of the run, and how many of them were new."""
    run.log_tables(ingested.tables, source, ingested.dataset)
    run.log_params({"tables_new": ingested.new, "tables_reused": ingested.reused})


@retried_task("ingest tables", persist_result=False)
def ingest_tables(
    store: Store, workload: WorkloadConfig, token: str, key: str, fingerprints: Mapping[int, str], lookups: bool
) -> int:
    """Some tables of a source -> statistics of their lookups in the lake; returns the number of tables.

    Args:
        store: may be another machine's.
        token: `token_of` the source when its state was read.
        key: of that state.
        fingerprints: tables to ingest: fingerprint by position in the source.
        lookups: keep them too.
    """
    source, described = opened_source(workload, token), list[Tables]()
    for position in fingerprints:
        looked_up = source.lookups(position)
        described.append(statistics(source.listed[position], looked_up))
        if lookups:
            store.lake.write_table_lookups(looked_up, described[-1])
    keep_part(store.lake, key, list(fingerprints.values()), concatenate(described))
    return len(described)


def task_runner() -> TaskRunner[Any]:
    """The task runner of the environment, not started yet.

    Raises:
        ValueError: there is no such runner, or its extra is not installed.
    """
    wanted = os.environ.get(VARIABLE, "threads")
    if wanted == "threads":
        return ThreadPoolTaskRunner(max_workers=os.cpu_count() or 1)
    kind, _, address = wanted.partition(":")
    if kind != "ray" or not address:
        raise ValueError(f"{VARIABLE} is {wanted!r}; give threads, ray:auto or ray:ray://HOST:PORT")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise ValueError(f"{VARIABLE} asks for Ray ({error}); install it: pip install 'dreamshard[ray]'") from error
    runner: TaskRunner[Any] = RayTaskRunner(address=address)
    return runner
