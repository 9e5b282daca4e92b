"""Opens a source of tables by its name: a bundled workload, a file, or a folder or bucket in one of two layouts.

- A list: one `tables.csv`, `tables.parquet` or `tables.json`, and `<table>.parquet` beside it for each table with recorded
  lookups: one column `indices`, a list per training sample. In file names, characters other than letters, digits and
  `_.-~` are escaped as in a URL: `a/b` is `a%2Fb.parquet`. All these files hold the same samples; other tables get Zipf
  lookups.
- Data files, each a batch of the same tables. Only the newest is read: the last by name, with numbers compared as numbers.

Files with other names are ignored.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
import torch

from dreamshard.files.digests import json_digest
from dreamshard.files.foreign import reading
from dreamshard.tables import padded_dim
from dreamshard.workloads import addresses
from dreamshard.workloads.criteo import open_criteo
from dreamshard.workloads.dlrm import open_arrays, open_dlrm
from dreamshard.workloads.lookups import Lookups, WorkloadTable, index_dtype, read_lookups
from dreamshard.workloads.meta import open_meta
from dreamshard.workloads.table_list import ModelTable, list_tables
from dreamshard.workloads.workload import (
    META_WORKLOADS,
    Workload,
    WorkloadConfig,
    bundled_lists,
    bundled_workloads,
    choose_tables,
    name_seed,
    table_dims,
)
from dreamshard.workloads.zipf import ALPHA, draw_ranks, scatter

Reader = Callable[[WorkloadConfig, Path, Path | None], Workload]

DATA_FILES: dict[str, Reader] = {
    r".+\.pt(\.gz)?": open_dlrm,
    r".+\.np[yz]": open_arrays,
    r".+\.tsv(\.gz)?": open_criteo,
    r"(train\.txt|day_\d+)(\.gz)?": open_criteo,
}
"""File name -> reader, which also gets the `<name>.tables.csv` beside the file, if there is one."""

LISTS = ("tables.csv", "tables.parquet", "tables.json")
_LIST_ENDINGS = (".csv", ".parquet", ".json")
_KINDS = ".pt, .npy, .npz, .tsv, train.txt, day_0, .csv, .parquet, .json"
_MOST_DRAWN = 2**27  # lookups of a table, each of some 40 bytes while drawn: 2,048 per sample of 65,536


@dataclass(frozen=True)
class _Found:
    """A file of a source.

    Attributes:
        file: a list of tables, or a data file.
        reader: of a data file; None for a list.
        beside: files that belong to it, and their change tokens: a data file's list, or all files of a list's folder.
    """

    file: str
    reader: Reader | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


def open_workload(config: WorkloadConfig) -> Workload:
    """Open the source that `config.source` names; lookups are read or drawn table by table, on demand.

    Raises:
        ValueError: there is no such workload, file or folder, a file is wrong, or there are too few tables.
    """
    if config.source in META_WORKLOADS:
        return open_meta(config)
    found = _find(config.source)
    with addresses.local_copy(found.file, *(found.beside if found.reader else ())) as path:
        if found.reader is None:
            return _open_listed(config, list_tables(path), found.beside)
        listed = next((path.with_name(addresses.file_name(name)) for name in found.beside), None)
        return found.reader(config, path, listed)


def change_token(source: str) -> str:
    """A token that changes whenever a file of the source changes; files are listed, not read.

    Raises:
        ValueError: there is no such workload, file or folder.
    """
    if source in META_WORKLOADS:
        return source
    found = _find(source)
    return json_digest([found.file, addresses.file_token(found.file), found.beside])


def chosen_tables(config: WorkloadConfig, listed: Sequence[ModelTable]) -> list[ModelTable]:
    """The tables of a list that the config asks for, with the dims it asks for, or their own as multiples of 4.

    A table's dim and lookups depend on its line alone, not on its place in the list.

    Raises:
        ValueError: the list has too few tables.
    """
    names = [table.name for table in listed]
    dims = table_dims(config, len(listed), [padded_dim(table.dim) for table in listed], names)
    rows = np.asarray([table.rows for table in listed], dtype=np.int64)
    chosen = choose_tables(config, rows, dims, names=names)
    return [replace(listed[t], dim=int(dims[t])) for t in chosen]


def zipf_table(table: ModelTable, batch_size: int, seed: int) -> WorkloadTable:
    """A table of a list with Zipf lookups.

    Samples have `pooling_factor` lookups, rounded so that the mean holds; one if the list gives none.

    Raises:
        ValueError: these are more lookups than are drawn.
    """
    pooling, rows = 1.0 if table.pooling_factor is None else table.pooling_factor, table.rows
    if pooling * batch_size > _MOST_DRAWN:
        raise ValueError(
            f"table {table.name!r} has {pooling:.4g} lookups per sample, {pooling * batch_size:.3g} in a batch of "
            f"{batch_size:,}, more than the {_MOST_DRAWN:,} that are drawn; correct pooling_factor, or use a smaller batch"
        )
    generator = np.random.default_rng([seed, 3, name_seed(table.name)])
    offsets = np.floor(np.arange(batch_size + 1) * pooling + 1e-9).astype(np.int64)
    indices = torch.from_numpy(scatter(draw_ranks(rows, int(offsets[-1]), generator, ALPHA), rows, generator))
    return WorkloadTable(table.name, rows, table.dim, Lookups(indices.to(index_dtype(rows)), torch.from_numpy(offsets)))


def zipf_fingerprint(table: ModelTable, batch_size: int, seed: int) -> str:
    """The fingerprint of `zipf_table` for the same arguments."""
    return json_digest(["zipf", ALPHA, table.name, table.rows, table.dim, table.pooling_factor, batch_size, seed])


def _find(source: str) -> _Found:
    """The file of a source: itself, or a folder's list, or else its newest data file.

    Raises:
        ValueError: there is no such file or folder, or its name says nothing of its content.
    """
    file = str(bundled_lists().get(source, source))
    if addresses.is_folder(file):
        files = addresses.files_in(file)
        lists, data = [name for name in files if name in LISTS], [name for name in files if _reader(name)]
        if len(lists) > 1:
            raise ValueError(f"{source} holds {' and '.join(lists)}; keep the one list of tables that is meant")
        if lists:
            return _Found(addresses.inside(file, lists[0]), beside=files)
        if not data:
            raise ValueError(
                f"{source} holds neither a list of tables ({', '.join(LISTS)}) nor data files ({_KINDS}); it holds "
                f"{', '.join([*files][:5]) or 'no files'}"
            )
        file = addresses.inside(file, max(data, key=_natural_order))
    reader, is_list = _reader(addresses.file_name(file)), file.endswith(_LIST_ENDINGS)
    if not addresses.is_file(file):
        if reader or is_list:
            raise ValueError(f"there is no file {source}, so there are no tables to ingest; check the path")
        near = get_close_matches(source, bundled_workloads(), n=1, cutoff=0.4)
        meant = f" (is {near[0]} meant?)" if near else ""
        raise ValueError(
            f"there is no workload {source!r}{meant}, so there are no tables to ingest; name one of "
            f"{', '.join(bundled_workloads())}, a file ({_KINDS}), a folder or bucket of such files, or a function that "
            "makes a TorchRec model (model.py:make_model)"
        )
    if not reader and not is_list:
        raise ValueError(f"{source} is a file whose name says nothing of its content; name it as one of {_KINDS}")
    if is_list:
        return _Found(file)
    listed = re.sub(r"(\.pt|\.np[yz]|\.tsv|\.txt)?(\.gz)?$", "", file) + ".tables.csv"  # day_0.tables.csv of day_0.gz
    return _Found(file, reader, {listed: addresses.file_token(listed)} if addresses.is_file(listed) else {})


def _open_listed(config: WorkloadConfig, listed: Sequence[ModelTable], files: Mapping[str, str]) -> Workload:
    """Tables of a list: lookups recorded beside a folder's list, or Zipf lookups of as many samples."""
    chosen = chosen_tables(config, listed)
    file_of = {table.name: f"{quote(table.name, safe='')}.parquet" for table in listed}
    recorded = {name: file for name, file in file_of.items() if file in files and file not in LISTS}
    others = [name for name in files if name.endswith(".parquet") and name not in LISTS]
    if others and not recorded:
        raise ValueError(
            f"{config.source} holds {others[0]}, but no table of its list has that name; name the files after the tables, "
            f"such as {next(iter(file_of.values()))}"
        )
    batch_size, of_chosen = config.batch_size, [recorded[table.name] for table in chosen if table.name in recorded]
    if of_chosen:
        batch_size = min(batch_size, _num_samples(addresses.inside(config.source, of_chosen[0])))

    def table(position: int) -> WorkloadTable:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_table(entry, batch_size, config.seed)
        file = addresses.inside(config.source, recorded[entry.name])
        with addresses.local_copy(file) as path:
            lookups = read_lookups(path, entry.rows)
        if lookups.batch_size < batch_size:
            raise ValueError(
                f"{file} holds {lookups.batch_size} samples, fewer than the {batch_size} of the other tables; record the "
                "same samples for every table"
            )
        return WorkloadTable(entry.name, entry.rows, entry.dim, lookups.first(batch_size))

    def fingerprint(position: int) -> str:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_fingerprint(entry, batch_size, config.seed)
        return json_digest(["recorded", entry.name, entry.rows, entry.dim, batch_size, files[recorded[entry.name]]])

    lookups = f"{len(of_chosen)} with recorded lookups, the others Zipf" if recorded else "Zipf lookups"
    description = (
        f"{len(chosen)} of the {len(listed)} tables of {Path(config.source).stem}, {lookups}, {batch_size} samples"
    )
    return Workload(description, tuple(entry.name for entry in chosen), table, fingerprint)


def _num_samples(file: str) -> int:
    """Training samples in a file of recorded lookups."""
    with addresses.local_copy(file) as path:
        with reading(path, "cannot be read as Parquet", "so its lookups are unknown; write it again"):
            num_samples = int(pq.read_metadata(path).num_rows)
        if not num_samples:
            raise ValueError(f"{path} holds no samples, so its table has no statistics; record lookups of a batch")
    return num_samples


def _reader(name: str) -> Reader | None:
    """The reader of a data file of this name, if it is one's."""
    return next((reader for pattern, reader in DATA_FILES.items() if re.fullmatch(pattern, name)), None)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts `day_9` before `day_10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
