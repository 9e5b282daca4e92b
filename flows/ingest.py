"""Tables and their lookups into the lake: those of a source that are new or changed."""

from typing import Any

from dreamshard.sizing import with_batch_size
from dreamshard.workloads import META_WORKLOADS
from flows.forms.configuration import configure
from flows.forms.form import deployed
from flows.forms.options import IngestOptions
from flows.reports import mlflow_tracking
from flows.tasks.ingestion import ingest_workload
from storage.store import open_store

RECORDED = (".pt", ".pt.gz", ".tsv", ".tsv.gz", *META_WORKLOADS)
"""Endings of sources with recorded samples; for lists of tables, as many samples as the recipe asks for are generated."""


@deployed("ingest")
def ingest(options: IngestOptions) -> dict[str, Any]:
    """Source -> lookups, tables and a dataset version in the lake."""
    config, store = with_batch_size(configure(options)), open_store()
    with mlflow_tracking.chain(store, "ingest", config, config.workload.seed) as chain, chain.stage("ingest") as run:
        ingested = ingest_workload(store, config.workload, options.name)
        mlflow_tracking.log_ingested(store, run, ingested, config.workload.source)
    dataset, lake = ingested.dataset, store.lake
    tables = lake.read_dataset(dataset)
    samples = lake.lookup_source(dataset)(tables.names[0]).batch_size
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
    if ingested.notes:
        outcome["notes"] = list(ingested.notes)
    return outcome
