"""Sizes of a source's tables without their lookups, where the source lists them: enough to see whether they fit."""

from pathlib import Path

from dreamshard.workloads import source_files
from dreamshard.workloads.config import META_WORKLOADS, WorkloadConfig, bundled_lists
from dreamshard.workloads.folder import LISTS
from dreamshard.workloads.meta_population import population
from dreamshard.workloads.source import choose_tables, table_dims
from dreamshard.workloads.synthetic import chosen_tables
from dreamshard.workloads.table_list import ListedTable, list_tables

_LIST_FILES = (".csv", ".parquet", ".json")


def listed_sizes(config: WorkloadConfig) -> list[ListedTable] | None:
    """The tables that the config asks for, in the source's order; None where only the data tell how large tables are.

    Args:
        config: its source is no function; the sizes of a model are those of the model.

    Raises:
        ValueError: there is no such file or folder, it cannot be read, or the list is wrong.
    """
    source = config.source
    if source in META_WORKLOADS:
        tables = population(source)
        dims = table_dims(config, len(tables.rows))
        chosen = choose_tables(config, tables.rows, dims, tables.shares).tolist()
        return [ListedTable(f"t{t:04}", int(tables.rows[t]), int(dims[t])) for t in chosen]
    if source in bundled_lists():
        return chosen_tables(config, list_tables(bundled_lists()[source]))
    file = source
    if source_files.is_folder(source):
        lists = [name for name in source_files.files_in(source) if name in LISTS]
        if len(lists) != 1:
            return None
        file = source_files.inside(source, lists[0])
    if Path(file).suffix not in _LIST_FILES:
        return None
    with source_files.local_copy(file) as path:
        return chosen_tables(config, list_tables(path))
