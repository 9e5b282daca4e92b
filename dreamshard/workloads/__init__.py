"""Where tables come from: one module per source, all yielding one `WorkloadTable` at a time.

Belongs here: readers and generators of lookups, and what a batch of lookups says about its table. Where it is kept is
`storage/`'s business.
"""

from collections.abc import Callable
from pathlib import Path

from dreamshard.files.digests import json_digest
from dreamshard.workloads import source_files
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.criteo import open_criteo
from dreamshard.workloads.dlrm import list_beside, open_dlrm
from dreamshard.workloads.folder import newest_data_file, open_listed_folder
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
    "source_mark",
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
        ValueError: there is no such workload, file or folder, a file is wrong, or there are too few tables.
    """
    source = config.source
    if source in META_WORKLOADS:
        return open_meta(config)
    if source in shipped_lists():
        return open_list(config, DATA / f"{source}.csv")
    file = _data_file(source)
    if file is None:
        return open_listed_folder(config, source)
    readers = {kind: reader for reader, kinds in READERS.items() for kind in kinds}
    reader = next(readers[kind] for kind in readers if file.endswith(kind))
    with source_files.local_copy(file, *_also_read(file)) as path:
        return reader(config, path)


def source_mark(source: str) -> str:
    """Changes when anything changes that `open_workload` reads of a source; the files are listed, not read.

    Raises:
        ValueError: there is no such workload, file or folder.
    """
    if source in META_WORKLOADS:
        return source
    if source in shipped_lists():
        return source_files.mark(str(DATA / f"{source}.csv"))
    file = _data_file(source)
    if file is None:
        return json_digest([source, source_files.files_in(source)])
    return json_digest([[(each, source_files.mark(each)) for each in (file, *_also_read(file))]])


def _data_file(source: str) -> str | None:
    """The one file to read, or None where `source` is a folder with a list of tables.

    Raises:
        ValueError: there is no such file or folder, or its name says nothing that can be read.
    """
    if source_files.is_folder(source):
        return newest_data_file(source)
    kinds = [kind for each in READERS.values() for kind in each]
    if not source.endswith(tuple(kinds)):
        raise ValueError(
            f"there is no workload {source!r}, so there are no tables to ingest; name one of {', '.join(shipped())}, "
            f"a file that ends in one of {', '.join(kinds)}, or a folder or bucket of such files"
        )
    if not source_files.is_file(source):
        raise ValueError(f"there is no file {source}, so there are no tables to ingest; check the path")
    return source


def _also_read(file: str) -> tuple[str, ...]:
    """What is read beside a data file: the list of the tables of a `.pt`, if there is one."""
    name = file.rpartition("/")[2]
    listed = source_files.beside(file, list_beside(Path(name)).name)
    return (listed,) if file.endswith((".pt", ".pt.gz")) and source_files.is_file(listed) else ()
