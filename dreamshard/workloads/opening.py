"""Opens a source of tables by its name: a bundled workload, a file, or a folder."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from dreamshard.files.digests import json_digest
from dreamshard.workloads import source_files
from dreamshard.workloads.config import META_WORKLOADS, WorkloadConfig, bundled_lists, bundled_workloads
from dreamshard.workloads.criteo import open_criteo
from dreamshard.workloads.dlrm import list_beside, open_dlrm
from dreamshard.workloads.folder import newest_data_file, open_listed_folder
from dreamshard.workloads.meta import open_meta
from dreamshard.workloads.source import Workload
from dreamshard.workloads.synthetic import open_list

READERS: dict[str, Callable[[WorkloadConfig, Path], Workload]] = {
    ".pt": open_dlrm,
    ".pt.gz": open_dlrm,
    ".tsv": open_criteo,
    ".tsv.gz": open_criteo,
    ".csv": open_list,
    ".parquet": open_list,
    ".json": open_list,
}
"""File name ending -> reader."""


def open_workload(config: WorkloadConfig) -> Workload:
    """Open the source that `config.source` names; lookups are read or drawn table by table, on demand.

    Raises:
        ValueError: there is no such workload, file or folder, a file is wrong, or there are too few tables.
    """
    source = config.source
    if source in META_WORKLOADS:
        return open_meta(config)
    if source in bundled_lists():
        return open_list(config, bundled_lists()[source])
    file = _data_file(source)
    if file is None:
        return open_listed_folder(config, source)
    reader = next(reader for ending, reader in READERS.items() if file.endswith(ending))
    with source_files.local_copy(file, *_list_beside(file)) as path:
        return reader(config, path)


def change_token(source: str) -> str:
    """A token that changes whenever a file of the source changes; files are listed, not read.

    Raises:
        ValueError: there is no such workload, file or folder.
    """
    if source in META_WORKLOADS:
        return source
    if source in bundled_lists():
        return source_files.change_token(str(bundled_lists()[source]))
    file = _data_file(source)
    if file is None:
        return json_digest([source, source_files.files_in(source)])
    files = (file, *_list_beside(file))
    return json_digest([[(name, source_files.change_token(name)) for name in files]])


def _data_file(source: str) -> str | None:
    """The one file to read, or None where `source` is a folder with a list of tables.

    Raises:
        ValueError: there is no such file or folder, or the name has an unknown ending.
    """
    if source_files.is_folder(source):
        return newest_data_file(source)
    if not source.endswith(tuple(READERS)):
        near = get_close_matches(source, bundled_workloads(), n=1, cutoff=0.4)
        meant = f" (is {near[0]} meant?)" if near else ""
        raise ValueError(
            f"there is no workload {source!r}{meant}, so there are no tables to ingest; name one of "
            f"{', '.join(bundled_workloads())}, a file that ends in one of {', '.join(READERS)}, a folder or bucket "
            "of such files, or a function that makes a TorchRec model (model.py:make_model)"
        )
    if not source_files.is_file(source):
        raise ValueError(f"there is no file {source}, so there are no tables to ingest; check the path")
    return source


def _list_beside(file: str) -> tuple[str, ...]:
    """The list of the tables of a `.pt` file, if there is one beside it."""
    listed = list_beside(file)
    return (listed,) if file.endswith((".pt", ".pt.gz")) and source_files.is_file(listed) else ()
