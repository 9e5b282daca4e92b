"""Tables and their lookups into the lake."""

from pathlib import Path
from typing import Any

from prefect import flow

from dreamshard.workloads import WorkloadConfig
from dreamshard.workloads.dlrm import list_beside
from dreamshard.workloads.published import META_WORKLOADS
from flows import steps, tracking
from flows.caching import file_hash
from flows.form import form
from flows.measuring import lake
from flows.parameters import DatasetName, RecipeName, Source, configure

RECORDED = (".pt", ".pt.gz", ".tsv", ".tsv.gz", *META_WORKLOADS)
"""How sources end that have samples of their own; for lists of tables as many are generated as asked for."""


def ingest_workload(workload: WorkloadConfig, name: str | None = None) -> str:
    """Ingest, unless the same source was ingested before and still lies in the lake; returns the dataset version."""
    file = Path(workload.source)
    content = source_hash(file) if file.is_file() else None
    dataset = steps.ingest_tables(workload, content, name or workload.source)
    if dataset not in lake().dataset_versions():  # the lake was emptied, the cache was not
        dataset = steps.ingest_tables.with_options(refresh_cache=True)(workload, content, name or workload.source)
    return dataset


def source_hash(file: Path) -> str:
    """Hash of everything that is read of a source: the file, and the list of its tables if one lies beside it."""
    listed = list_beside(file)
    return "-".join(file_hash(each) for each in ([file, listed] if listed.is_file() else [file]))


@form
@flow(name="ingest", persist_result=True, result_serializer="json")
def ingest(recipe: RecipeName = "default", source: Source = None, name: DatasetName = None) -> dict[str, Any]:
    """Source -> lookups, tables and a dataset version in the lake."""
    config = configure(recipe, source=source)
    with tracking.chain("ingest", config, config.workload.seed) as chain, chain.stage("ingest") as run:
        dataset = ingest_workload(config.workload, name)
        tracking.log_dataset(run, dataset, config.workload.source)
    tables = lake().read_dataset(dataset)
    samples = lake().lookup_source(dataset)(tables.names[0]).batch_size
    outcome: dict[str, Any] = {
        "dataset": dataset,
        "tables": len(tables),
        "samples": samples,
        "lookups": int(tables.lookups.sum()),
        "distinct_rows": int(tables.unique_rows.sum()),
        "gib_fp32": round(float(tables.memory_bytes("fp32", "sgd").sum()) / 2**30, 3),
    }
    if samples == config.workload.batch_size and config.workload.source.endswith(RECORDED):
        outcome["note"] = f"recipe {config.name} takes no more than the first {samples} samples of a source"
    return outcome
