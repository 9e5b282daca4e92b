"""A folder or bucket of tables, at a path or any fsspec URI, in one of two layouts.

- A list: one `tables.csv`, `tables.parquet` or `tables.json`, and `<table>.parquet` beside it for each table with recorded
  lookups: one column `indices`, a list per training sample. In file names, characters other than letters, digits and
  `_.-~` are escaped as in a URL: `a/b` is `a%2Fb.parquet`. All these files hold the same samples; other tables get Zipf
  lookups.
- Data files: `.pt`, `.pt.gz`, `.tsv` or `.tsv.gz`, each a batch of the same tables. Only the newest is read: the last by
  name, with numbers compared as numbers.

Files with other names are ignored.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

from dreamshard.files import parquet
from dreamshard.files.digests import json_digest
from dreamshard.workloads import source_files
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import WorkloadTable, read_lookups
from dreamshard.workloads.source import Workload
from dreamshard.workloads.synthetic import chosen_tables, zipf_fingerprint, zipf_table
from dreamshard.workloads.table_list import ListedTable, list_tables

LISTS = ("tables.csv", "tables.parquet", "tables.json")
DATA_FILES = (".pt", ".pt.gz", ".tsv", ".tsv.gz")


def newest_data_file(folder: str) -> str | None:
    """The data file of a folder to read, or None if the folder has a list of tables.

    Raises:
        ValueError: the folder has neither layout.
    """
    names = source_files.files_in(folder)
    if any(name in LISTS for name in names):
        return None
    data_files = [name for name in names if name.endswith(DATA_FILES)]
    if not data_files:
        raise ValueError(
            f"{folder} holds neither a list of tables ({', '.join(LISTS)}) nor data files ({', '.join(DATA_FILES)}), so "
            f"there are no tables to ingest; it holds {', '.join(list(names)[:5]) or 'no files'}"
        )
    return source_files.inside(folder, max(data_files, key=_natural_order))


def open_listed_folder(config: WorkloadConfig, folder: str) -> Workload:
    """Tables of a folder's list: recorded lookups, or Zipf lookups of as many samples where none were recorded.

    Raises:
        ValueError: the list is wrong or has too few tables, there are several, or recorded lookups belong to no table.
    """
    files = source_files.files_in(folder)
    lists = [name for name in files if name in LISTS]
    if len(lists) != 1:
        raise ValueError(
            f"{folder} holds {' and '.join(lists)}, so it is unclear which tables it has; keep one list of tables"
        )
    with source_files.local_copy(source_files.inside(folder, lists[0])) as path:
        listed = list_tables(path)
    chosen = chosen_tables(config, listed)
    recorded = _recorded(folder, files, listed)
    chosen_files = [recorded[table.name] for table in chosen if table.name in recorded]
    batch_size = config.batch_size
    if chosen_files:
        batch_size = min(batch_size, _num_samples(source_files.inside(folder, chosen_files[0])))

    def table(position: int) -> WorkloadTable:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_table(entry, batch_size, config.seed)
        return _read(entry, source_files.inside(folder, recorded[entry.name]), batch_size)

    def fingerprint(position: int) -> str:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_fingerprint(entry, batch_size, config.seed)
        return json_digest(["recorded", entry.name, entry.rows, entry.dim, batch_size, files[recorded[entry.name]]])

    description = (
        f"{len(chosen)} of the {len(listed)} tables of {folder}, {len(chosen_files)} with recorded lookups, the others Zipf, "
        f"{batch_size} samples"
    )
    return Workload(description, tuple(entry.name for entry in chosen), table, fingerprint)


def _recorded(folder: str, files: Mapping[str, str], listed: list[ListedTable]) -> dict[str, str]:
    """Table name -> file name, for tables with recorded lookups."""
    file_of = {table.name: f"{quote(table.name, safe='')}.parquet" for table in listed}
    recorded = {name: file for name, file in file_of.items() if file in files and file not in LISTS}
    others = [name for name in files if name.endswith(".parquet") and name not in LISTS]
    if others and not recorded:
        raise ValueError(
            f"{folder} holds {others[0]}, but no table of its list has that name, so no recorded lookups would be used; "
            f"name the files after the tables, such as {next(iter(file_of.values()))}"
        )
    return recorded


def _num_samples(file: str) -> int:
    """Training samples in a file of recorded lookups."""
    with source_files.local_copy(file) as path:
        advice = "so its lookups are unknown; it may be truncated: write it again"
        num_samples = parquet.num_rows(path, advice)
        if not num_samples:
            raise ValueError(f"{path} holds no samples, so its table has no statistics; record lookups of a batch")
    return num_samples


def _read(table: ListedTable, file: str, batch_size: int) -> WorkloadTable:
    with source_files.local_copy(file) as path:
        lookups = read_lookups(path, table.rows)
    if lookups.batch_size < batch_size:
        raise ValueError(
            f"{file} holds {lookups.batch_size} samples, fewer than the {batch_size} of the other tables, and a batch "
            "looks up all tables; record the same samples for every table"
        )
    return WorkloadTable(table.name, table.rows, table.dim, lookups.first(batch_size))


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts `day_9` before `day_10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
