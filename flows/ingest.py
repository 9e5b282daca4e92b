"""Tables and their lookups into the lake."""

from pathlib import Path
from typing import Any

from prefect import flow

from dreamshard.workloads import WorkloadConfig
from flows import steps, tracking
from flows.caching import file_hash
from flows.measuring import lake
from flows.parameters import DatasetName, RecipeName, Source, configure, described


def ingest_workload(workload: WorkloadConfig, name: str | None = None) -> str:
    """Ingest, unless the same source was ingested before and still lies in the lake; returns the dataset version."""
    file = Path(workload.source)
    content = file_hash(file) if file.is_file() else None
    dataset = steps.ingest_tables(workload, content, name or workload.source)
    if dataset not in lake().dataset_versions():  # the lake was emptied, the cache was not
        dataset = steps.ingest_tables.with_options(refresh_cache=True)(workload, content, name or workload.source)
    return dataset


@flow(name="ingest", persist_result=True, result_serializer="json")
@described
def ingest(recipe: RecipeName = "default", source: Source = None, name: DatasetName = None) -> dict[str, Any]:
    """Source -> lookups, tables and a dataset version in the lake."""
    config = configure(recipe, source=source)
    with tracking.chain("ingest", config, config.workload.seed) as chain, chain.stage("ingest") as run:
        dataset = ingest_workload(config.workload, name)
        tracking.log_dataset(run, dataset, config.workload.source)
    tables = lake().read_dataset(dataset)
    return {
        "dataset": dataset,
        "tables": len(tables),
        "lookups": int(tables.lookups.sum()),
        "distinct_rows": int(tables.unique_rows.sum()),
        "gib_fp32": round(float(tables.memory_bytes("fp32", "sgd").sum()) / 2**30, 3),
    }
