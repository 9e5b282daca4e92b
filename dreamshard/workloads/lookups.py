"""Rows that each training sample looks up, in memory and as Parquet.

An Arrow list array *is* (offsets, values), so a file reaches the fused operator without a copy.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.files import atomic
from dreamshard.files.foreign import InputError, brief
from dreamshard.files.parquet import parquet_errors

UNUSED_S = 30 * 86_400.0
"""Time after which a local copy of remote lookups that nothing has read is removed."""


@dataclass(frozen=True)
class Lookups:
    """Rows of one table that a batch of samples looks up.

    Attributes:
        indices: `[N]` row indices, sample after sample; int32, or int64 if the rows need it.
        offsets: `[O]`, O = B+1: sample `b` looks up `indices[offsets[b]:offsets[b+1]]`; from 0 to N; int32 or int64.
    """

    indices: Int[Tensor, " N"]
    offsets: Int[Tensor, " O"]

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return len(self.offsets) - 1

    def first(self, batch_size: int) -> "Lookups":
        """The first `batch_size` samples, or all if there are fewer; shares memory."""
        if batch_size >= self.batch_size:
            return self
        return Lookups(self.indices[: int(self.offsets[batch_size])], self.offsets[: batch_size + 1])

    def of_rows(self, first: int, end: int) -> "Lookups":
        """Those of rows `first` to `end` (exclusive), numbered from the first, of the same samples."""
        inside = (self.indices >= first) & (self.indices < end)
        before: Int[Tensor, " O"] = torch.cat([inside.new_zeros(1, dtype=torch.int64), inside.cumsum(0)])
        return Lookups(self.indices[inside] - first, before[self.offsets.long()])


@dataclass(frozen=True)
class WorkloadTable:
    """One table as a source yields it, without statistics."""

    name: str
    rows: int
    dim: int
    lookups: Lookups


LookupSource = Callable[[str], Lookups]
"""Returns a table's lookups by its name; picklable, so that ranks in other processes can use it."""


@dataclass(frozen=True)
class LookupFiles:
    """A `LookupSource` over one Parquet file per table.

    Attributes:
        paths: table name -> local path, or address of a remote file (`s3://...`).
        batch_size: number of samples to take from the start of each file, or None for all.
        copies: local folder for copies of remote files, which must be named by their content; None if all are local.
    """

    paths: Mapping[str, Path | str]
    batch_size: int | None = None
    copies: Path | None = None

    def __call__(self, name: str) -> Lookups:
        """Read the lookups of table `name`.

        Raises:
            ValueError: the table has no file, the file does not hold lookups, or it has too few samples.
        """
        if name not in self.paths:
            raise ValueError(
                f"there are no lookups of table {name!r} among the {len(self.paths)} files, so it cannot be measured; "
                "ingest the workload that holds it"
            )
        file = self.paths[name]
        lookups = read_lookups(file if self.copies is None else _copied(str(file), self.copies))
        wanted = lookups.batch_size if self.batch_size is None else self.batch_size
        if lookups.batch_size < wanted:
            raise ValueError(
                f"{file} holds {lookups.batch_size} samples, fewer than the batch of {wanted} to "
                "measure; ingest with a larger batch_size or measure a smaller one"
            )
        return lookups.first(wanted)


def _copied(address: str, copies: Path) -> Path:
    """The local copy of a remote file, made if missing; concurrent ranks write the same bytes."""
    copy = copies / address.rpartition("/")[2]
    if copy.exists():
        with suppress(OSError):  # another user's, or on a disk that may only be read
            os.utime(copy)  # used now
        return copy
    try:
        files, path = fsspec.core.url_to_fs(address)
        with atomic.replacing(copy) as temporary:
            files.get_file(path, str(temporary))
    except FileNotFoundError:
        raise ValueError(f"there is no lookups file {address}; ingest the workload again to make it") from None
    _remove_unused(copies)
    return copy


def _remove_unused(copies: Path) -> None:
    """Remove copies that nothing has read for long; as tables change, they would fill the disks of hosts that measure."""
    for copy in copies.iterdir():
        with suppress(OSError):  # another rank was faster, or it is another user's
            if time.time() - copy.stat().st_mtime > UNUSED_S:
                copy.unlink()


def write_lookups(path: str | Path, lookups: Lookups) -> None:
    """Write one table's batch to `path` atomically: one column `indices`, one row per sample.

    Raises:
        ValueError: offsets do not start at 0, do not end at N, or exceed what a file of one batch can hold.
    """
    last = int(lookups.offsets[-1])
    if int(lookups.offsets[0]) != 0 or last != len(lookups.indices):
        raise ValueError(
            f"offsets run from {int(lookups.offsets[0])} to {last}, but there are {len(lookups.indices)} indices; "
            "samples would get the wrong rows, so make offsets start at 0 and end at the number of indices"
        )
    if last >= 2**31:
        raise ValueError(f"a batch of {last} lookups is more than one Arrow list array holds; use a smaller batch")
    values = pa.array(lookups.indices.numpy())
    kind = pa.list_(pa.field("element", values.type, nullable=False))
    samples = pa.ListArray.from_arrays(pa.array(lookups.offsets.to(torch.int32).numpy()), values, type=kind)
    table = pa.table([samples], schema=pa.schema([pa.field("indices", kind, nullable=False)]))
    with atomic.replacing(Path(path)) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=max(1, lookups.batch_size),  # one chunk when read, hence no copy
            use_dictionary=False,
            column_encoding={"indices.list.element": "BYTE_STREAM_SPLIT"},
            compression="lz4",  # the high bytes are mostly zero: 30 % less to fsync at no cost in time
            write_statistics=False,
        )


def read_lookups(path: str | Path, rows: int | None = None) -> Lookups:
    """Read a file of `write_lookups`; the tensors share the file's buffers and must not be written to.

    Args:
        rows: hash size to check the indices against, or None to check only for negative ones.

    Raises:
        ValueError: the file is missing, truncated, in another format, or has indices outside the table.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no lookups file {path}; ingest the workload again to make it")
    advice = "so its table cannot be measured; it may be truncated: remove it and ingest again"
    with parquet_errors(path, advice), pq.ParquetFile(str(path), memory_map=True) as file:
        table = file.read()
    kinds = (pa.int32(), pa.int64())
    column = table.column("indices") if table.column_names == ["indices"] else None
    if column is None or not pa.types.is_list(column.type) or column.type.value_type not in kinds:
        raise ValueError(
            f"{path} has columns {brief([f'{f.name}: {f.type}' for f in table.schema])}, not the one column "
            "`indices: list<int32 or int64>` of lookups; name a file that ingest wrote"
        )
    with parquet_errors(path, advice):
        samples = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        samples.validate()
        if samples.null_count or samples.values.null_count:
            raise InputError(f"{path} has missing values where lookups should be; ingest the table again")
        lookups = Lookups(_tensor(samples.values), _tensor(samples.offsets))
    check_indices(lookups.indices, rows, str(path))
    return lookups


def check_indices(indices: Int[Tensor, " N"], rows: int | None, name: str) -> None:
    """Raise a ValueError if an index names no row of the table."""
    if not len(indices):
        return
    low, high = (int(bound) for bound in indices.aminmax())
    if low < 0:
        raise ValueError(f"{name} has a negative index ({low}), which names no row; indices must be 0 or more")
    if rows is not None and high >= rows:
        raise ValueError(
            f"{name} has index {high} outside the table of {rows} rows, so the lookup would read past its end; "
            "give the hash size the indices were made with"
        )


def index_dtype(rows: int) -> torch.dtype:
    """int32, or int64 for a table whose rows need it."""
    return torch.int32 if rows <= 2**31 else torch.int64


def _tensor(array: Any) -> Tensor:
    if not len(array):
        return torch.empty(0, dtype=torch.int32 if array.type == pa.int32() else torch.int64)
    return torch.utils.dlpack.from_dlpack(array)
