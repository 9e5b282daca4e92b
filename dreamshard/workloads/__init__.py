"""Where tables come from: one module per source, all yielding one `WorkloadTable` at a time.

Belongs here: readers and generators of lookups, and what a batch of lookups says about its table. Where it is kept is
`storage/`'s business.
"""

from collections.abc import Callable
from pathlib import Path

from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.criteo import open_criteo
from dreamshard.workloads.dlrm import open_dlrm
from dreamshard.workloads.lookups import (
    LookupFiles,
    Lookups,
    LookupSource,
    WorkloadTable,
    read_lookups,
    write_lookups,
)
from dreamshard.workloads.meta import open_meta
from dreamshard.workloads.published import META_WORKLOADS
from dreamshard.workloads.source import Workload
from dreamshard.workloads.statistics import dataset_version, statistics
from dreamshard.workloads.synthetic import DATA, open_list, shipped_lists

__all__ = [
    "LookupFiles",
    "LookupSource",
    "Lookups",
    "Workload",
    "WorkloadConfig",
    "WorkloadTable",
    "dataset_version",
    "open_workload",
    "read_lookups",
    "shipped",
    "statistics",
    "write_lookups",
]

READERS: dict[Callable[[WorkloadConfig, Path], Workload], tuple[str, ...]] = {
    open_dlrm: (".pt", ".pt.gz"),
    open_criteo: (".tsv", ".tsv.gz"),
    open_list: (".csv", ".parquet", ".json"),
}
"""Which files each reader takes, by how their names end."""


def shipped() -> list[str]:
    """Names of the workloads that come with the package."""
    return sorted([*META_WORKLOADS, *shipped_lists()])


def open_workload(config: WorkloadConfig) -> Workload:
    """Open the source that `config.source` names; its tables come one at a time.

    Raises:
        ValueError: there is no such workload or file, the file is wrong, or it has too few tables.
    """
    source = config.source
    if source in META_WORKLOADS:
        return open_meta(config)
    if source in shipped_lists():
        return open_list(config, DATA / f"{source}.csv")
    readers = {kind: reader for reader, kinds in READERS.items() for kind in kinds}
    kind = next((kind for kind in readers if source.endswith(kind)), None)
    if kind is None:
        raise ValueError(
            f"there is no workload {source!r}, so there are no tables to ingest; name one of {', '.join(shipped())}, "
            f"or a file that ends in one of {', '.join(readers)}"
        )
    if not Path(source).is_file():
        raise ValueError(f"there is no file {source}, so there are no tables to ingest; check the path")
    return readers[kind](config, Path(source))
