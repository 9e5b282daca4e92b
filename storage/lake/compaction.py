"""Compaction: many small files of cost samples become few, so that a query need not open each (about 1 ms).

Each folder of a testbed and a dataset version is made anew beside the lake's data, with small files merged and large ones
linked, and takes the old folder's place by one exchange of the two names. So a reader sees all old files or all new ones,
and a process that is killed leaves either: what is in `<lake>/compacting` is never needed and is removed by the next
compaction. Writers of samples wait meanwhile; queries wait for the exchange alone (`readers`).

A bucket cannot exchange two folders, so lakes there are not compacted.
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from dreamshard.files import atomic
from storage.filesystem import FileInfo, list_file_infos
from storage.lake import confined, readers, schemas
from storage.lake.lake import Lake
from storage.lake.merged_samples import MERGED
from storage.lake.parquet_files import content_id, read_parquet, write_parquet

STAGING = "compacting"
SMALL_BYTES = 8 * 2**20
"""Files below this size are merged."""

MANY_FILES = 1000
"""So many small files in a folder are merged without being asked for: they cost a query about half a second."""

_GROUP_BYTES = 64 * 2**20  # of the files that become one: with their rows in memory, below 1 GiB
_GROUP_FILES = 4096
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
_AT_CWD = -100
_ADVICE = "so the files beside it stay as they are; remove the damaged one, run its stage again, then this again"


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """A folder of cost samples: its path below the lake's root, and its numbers of files before and after."""

    folder: str
    files_before: int
    files_after: int


def compact(lake: Lake, *, at_least: int = 2, wait_s: float = 60.0) -> list[Compacted]:
    """Merge the small files of each folder of cost samples; returns the folders that changed.

    Args:
        at_least: number of small files that makes a folder worth it.
        wait_s: seconds to wait for readers, for each folder.

    Raises:
        ValueError: the lake is in a bucket, its file system cannot exchange folders, a file cannot be read, or readers never
            pause; folders done by then stay done, and the others are as before.
    """
    root = lake.root
    if not isinstance(root, Path):
        raise ValueError(
            f"the lake {root} is in a bucket, where many files cannot be replaced at once, so a reader could miss samples or "
            "count them twice; compact a lake in a folder"
        )
    if not (root / "cost_samples").is_dir():
        return []
    done = []
    with lake.one_writer("cost_samples"):
        shutil.rmtree(root / STAGING, ignore_errors=True)
        for folder in sorted((root / "cost_samples").glob("*/*")):
            files = list_file_infos(folder, "*.parquet")
            groups = list(_groups([file for file in files if file.size_bytes < SMALL_BYTES]))
            if sum(map(len, groups)) >= at_least:
                _replace(root, folder, groups, wait_s)
                after = len(files) - sum(len(group) - 1 for group in groups)
                done.append(Compacted(folder=str(folder.relative_to(root)), files_before=len(files), files_after=after))
    return done


def compact_where_many(lake: Lake, *, wait_s: float = 10.0) -> list[Compacted]:
    """`compact` the folders with `MANY_FILES` small files; cheap where there are none, for names are counted only.

    Nothing is asked of a bucket, which is not compacted.

    Raises:
        ValueError: as `compact`, other than for a bucket.
    """
    root = lake.root
    if not isinstance(root, Path):
        return []
    if all(_num_files(folder) < MANY_FILES for folder in (root / "cost_samples").glob("*/*")):
        return []
    return compact(lake, at_least=MANY_FILES, wait_s=wait_s)


def _num_files(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.name.endswith(".parquet") for entry in entries)


def _groups(files: Sequence[FileInfo]) -> Iterator[list[FileInfo]]:
    """Files that become one, in the order of their names; a file that would be alone stays as it is."""
    group: list[FileInfo] = []
    size = 0
    for file in files:
        if group and (size + file.size_bytes > _GROUP_BYTES or len(group) == _GROUP_FILES):
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(file)
        size += file.size_bytes
    if len(group) > 1:
        yield group


def _replace(root: Path, folder: Path, groups: Sequence[Sequence[FileInfo]], wait_s: float) -> None:
    staged = root / STAGING / folder.parent.name / folder.name
    staged.mkdir(parents=True)
    shutil.copymode(folder, staged)
    merged = {file.path for group in groups for file in group}
    for path in folder.iterdir():
        if path not in merged and path.suffix != ".tmp":
            os.link(path, staged / path.name)
    for group in groups:
        target = staged / f"{MERGED}.{content_id([file.path.name for file in group])}.parquet"
        write_parquet(target, _rows([folder / file.path.name for file in group]))
        modified = max(file.modified.timestamp() for file in group)  # what decides on their removal
        os.utime(target, (modified, modified))
    with readers.replacing(root, wait_s):
        _exchange(staged, folder)
    shutil.rmtree(staged)


def _rows(paths: Sequence[Path]) -> pa.Table:
    """All rows of the files, those of a run together.

    Raises:
        ValueError: a file cannot be read.
    """
    sql = (
        "select * exclude (name) from read_parquet(?, union_by_name = true, hive_partitioning = false, filename = 'name') "
        "order by run_key, iteration, created_at, sample_id, device"
    )
    expected = 0
    for path in paths:  # DuckDB does not look at the checksums that the merged file gets anew
        expected += len(read_parquet(path, advice=_ADVICE))
    with duckdb.connect(config=confined.BEFORE) as connection:
        connection.execute(
            "set enable_progress_bar = false"
        )  # shown by itself where no file is run, in a child's stdout too
        try:
            found = connection.sql(sql, params=[[str(path) for path in paths]]).to_arrow_table()
        except duckdb.Error as error:
            raise ValueError(
                f"the samples in {paths[0].parent} cannot be merged ({str(error).splitlines()[0]}), {_ADVICE}"
            ) from error
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in found.column_names
        else pa.nulls(len(found), field.type)
        for field in schemas.MEASUREMENTS
    ]
    if len(found) != expected:
        raise ValueError(
            f"{len(found)} rows were read of {expected} in {paths[0].parent}, so samples would be lost, and its files stay "
            "as they are; run this again when nothing else removes files of the lake"
        )
    return pa.Table.from_arrays(columns, schema=schemas.MEASUREMENTS)


def _exchange(staged: Path, folder: Path) -> None:
    """Give two folders each other's name in one step (Linux, renameat2(2)).

    Raises:
        ValueError: the file system cannot.
    """
    atomic.sync(staged)
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(staged), os.fsencode(folder)
    if libc.renameat2(_AT_CWD, names[0], _AT_CWD, names[1], _EXCHANGE):
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(folder))
        raise ValueError(
            f"the file system of {folder} cannot exchange two folders at once ({os.strerror(code)}), so a reader could miss "
            "samples, and nothing was changed; compact the lake on a disk of Linux (ext4, xfs, btrfs, tmpfs)"
        )
    atomic.sync(staged.parent)
    atomic.sync(folder.parent)
