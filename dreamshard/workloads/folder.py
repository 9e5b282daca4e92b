"""A folder or a bucket of tables, as any fsspec URI.

Two layouts. **A list**: one `tables.csv`, `tables.parquet` or `tables.json`, and beside it, for tables whose lookups were
recorded, `<table>.parquet` with the one column `indices` (a list per training sample; characters of a name other than
letters, digits and `_.-~` as in a URL: `a/b` is `a%2Fb.parquet`). All such files hold the same samples; tables without one
get Zipf lookups. **Data files**: `.pt`, `.pt.gz`, `.tsv` or `.tsv.gz`, each a batch of the same tables; the last by name
(numbers count as numbers) is the newest and is the one that is read. Files of other names are left alone.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.files.digests import json_digest
from dreamshard.workloads import source_files
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.listed import ListedTable, list_tables
from dreamshard.workloads.lookups import WorkloadTable, read_lookups
from dreamshard.workloads.source import Workload
from dreamshard.workloads.synthetic import chosen_tables, zipf_fingerprint, zipf_table

LISTS = ("tables.csv", "tables.parquet", "tables.json")
DATA_FILES = (".pt", ".pt.gz", ".tsv", ".tsv.gz")


def newest_data_file(folder: str) -> str | None:
    """The data file of a folder that counts, or None where the folder has a list of tables.

    Raises:
        ValueError: the folder is of neither layout.
    """
    names = source_files.files_in(folder)
    if any(name in LISTS for name in names):
        return None
    data = [name for name in names if name.endswith(DATA_FILES)]
    if not data:
        raise ValueError(
            f"{folder} holds neither a list of tables ({', '.join(LISTS)}) nor data files ({', '.join(DATA_FILES)}), so "
            f"there are no tables to ingest; it holds {', '.join(list(names)[:5]) or 'no files'}"
        )
    return source_files.inside(folder, max(data, key=_natural))


def open_listed_folder(config: WorkloadConfig, folder: str) -> Workload:
    """Tables of the list of a folder: lookups as recorded, or Zipf lookups of as many samples where there are none.

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
    batch_size = _samples(config, folder, [recorded[table.name] for table in chosen if table.name in recorded])

    def table(position: int) -> WorkloadTable:
        its = chosen[position]
        if its.name not in recorded:
            return zipf_table(its, batch_size, config.seed)
        return _read(its, source_files.inside(folder, recorded[its.name]), batch_size)

    def fingerprint(position: int) -> str:
        its = chosen[position]
        if its.name not in recorded:
            return zipf_fingerprint(its, batch_size, config.seed)
        return json_digest(["recorded", its.name, its.rows, its.dim, batch_size, files[recorded[its.name]]])

    num_recorded = sum(its.name in recorded for its in chosen)
    return Workload(
        f"{len(chosen)} of the {len(listed)} tables of {folder}, {num_recorded} with recorded lookups, the others Zipf, "
        f"{batch_size} samples",
        tuple(its.name for its in chosen),
        table,
        fingerprint,
    )


def _recorded(folder: str, files: Mapping[str, str], listed: list[ListedTable]) -> dict[str, str]:
    """Table name to file name, for the tables whose lookups were recorded."""
    file_of = {table.name: f"{quote(table.name, safe='')}.parquet" for table in listed}
    found = {name: file for name, file in file_of.items() if file in files and file not in LISTS}
    others = [name for name in files if name.endswith(".parquet") and name not in LISTS]
    if others and not found:
        raise ValueError(
            f"{folder} holds {others[0]}, but no table of its list is called so, so no recorded lookups would be used; "
            f"name the files as the tables, as {next(iter(file_of.values()))}"
        )
    return found


def _samples(config: WorkloadConfig, folder: str, files: list[str]) -> int:
    """Training samples of a batch: as asked for, fewer where the recorded lookups are fewer."""
    if not files:
        return config.batch_size
    with source_files.local_copy(source_files.inside(folder, files[0])) as path:
        try:
            recorded = int(pq.read_metadata(path).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{path} cannot be read as Parquet ({str(error).splitlines()[0][:200]}); it may be truncated, so write "
                "it again"
            ) from error
        if not recorded:
            raise ValueError(f"{path} holds no samples, so nothing can be said of its table; record lookups of a batch")
    return min(config.batch_size, recorded)


def _read(table: ListedTable, file: str, batch_size: int) -> WorkloadTable:
    with source_files.local_copy(file) as path:
        lookups = read_lookups(path, table.rows)
    if lookups.batch_size < batch_size:
        raise ValueError(
            f"{file} holds {lookups.batch_size} samples, fewer than the {batch_size} of the other tables, and a batch "
            "looks up all tables; record the same samples for every table"
        )
    return WorkloadTable(table.name, table.rows, table.dim, lookups.first(batch_size))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `day_9` before `day_10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
