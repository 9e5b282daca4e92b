"""Meta's DLRM data sets: `torch.save((indices [N], offsets [T*B+1], lengths [T, B]))`, as `.pt` or gzipped `.pt.gz`.

Source of the format: github.com/facebookresearch/dlrm_datasets. A file is memory-mapped and nothing but tensors is
unpickled, so one table is in memory at a time and a file from the internet cannot run code.
"""

import gzip
import hashlib
import os
import pickle
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.files.digests import json_digest
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.listed import list_tables
from dreamshard.workloads.lookups import Lookups, WorkloadTable, check_indices, index_dtype
from dreamshard.workloads.source import Workload, choose_tables, table_dims

FORMAT = "(indices int64 [N], offsets int64 [T*B+1], lengths [T, B])"
CHUNK_BYTES = 2**24


@dataclass(frozen=True)
class DlrmFile:
    """The three tensors of a file, memory-mapped.

    Attributes:
        name: of the file, for messages.
        indices: `[N]` rows, table after table and sample after sample.
        offsets: `[T*B+1]` sample `b` of table `t` looks up `indices[offsets[t*B+b]:offsets[t*B+b+1]]`.
        lengths: `[T, B]` lookups per table and sample.
    """

    name: str
    indices: Int[Tensor, " N"]
    offsets: Int[Tensor, " M"]
    lengths: Int[Tensor, "T B"]

    def segment(self, t: int, batch_size: int) -> Lookups:
        """The first `batch_size` samples of table `t`, memory-mapped, as the file has them."""
        start = t * self.lengths.shape[1]
        offsets = self.offsets[start : start + batch_size + 1]
        return Lookups(self.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def open_dlrm(config: WorkloadConfig, path: Path) -> Workload:
    """Open a `.pt` or `.pt.gz` file of Meta's format.

    Hash sizes and dims are not in such a file. They are read from `<name>.tables.csv` beside it if there is one, with
    one line per table in the file's order; else a table has as many rows as its largest index needs.

    Args:
        config: which of the tables, dims, and how many of the file's first samples at most.
        path: the file.

    Raises:
        ValueError: the file is missing, truncated, not of the format, or inconsistent. Indices are checked when
            their table is read.
    """
    file = _load(path)
    num_tables, file_batch = file.lengths.shape
    list_path = list_beside(path)
    listed = list_tables(list_path) if list_path.is_file() else None
    if listed is not None and len(listed) != num_tables:
        raise ValueError(
            f"{list_path} lists {len(listed)} tables, but {path} holds {num_tables}, so they cannot be told apart; "
            "give one line per table in the file's order"
        )
    dims = table_dims(config, num_tables, [table.dim for table in listed] if listed else None)
    rows = np.asarray([table.rows for table in listed]) if listed else np.zeros(num_tables, dtype=np.int64)
    if listed is None and config.max_table_bytes is not None:
        rows = np.asarray([_rows_needed(file, t) for t in range(num_tables)], dtype=np.int64)
    chosen = choose_tables(config, rows, dims)
    names = [table.name for table in listed] if listed else [f"t{t:04}" for t in range(num_tables)]
    batch_size = min(config.batch_size, file_batch)
    return Workload(
        f"{len(chosen)} of the {num_tables} tables of {path.name}, {batch_size} samples",
        tuple(names[t] for t in chosen),
        _reader(file, names, rows, dims, chosen, batch_size),
        lambda position: _fingerprint(file, names, rows, dims, int(chosen[position]), batch_size),
    )


def list_beside(path: Path) -> Path:
    """Where the list of the tables of a `.pt` or `.pt.gz` lies, if there is one."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".pt") + ".tables.csv")


def _reader(
    file: DlrmFile,
    names: list[str],
    rows: npt.NDArray[np.int64],
    dims: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    batch_size: int,
) -> Callable[[int], WorkloadTable]:
    def read(position: int) -> WorkloadTable:
        t = int(chosen[position])
        num_rows = int(rows[t]) or _rows_needed(file, t)
        part = file.segment(t, batch_size)
        check_indices(part.indices, num_rows, f"table {t} of {file.name}")
        lookups = Lookups(part.indices.to(index_dtype(num_rows), copy=True), part.offsets)
        return WorkloadTable(names[t], num_rows, int(dims[t]), lookups)

    return read


def _fingerprint(
    file: DlrmFile,
    names: list[str],
    rows: npt.NDArray[np.int64],
    dims: npt.NDArray[np.int64],
    t: int,
    batch_size: int,
) -> str:
    """Of the table's part of the file: the batch, and all of it where its largest index says how many rows it has."""
    part = file.segment(t, batch_size if rows[t] else file.lengths.shape[1])
    content = hashlib.sha256(part.indices.numpy().data)
    content.update(part.offsets.to(torch.int64).numpy().data)
    return json_digest([names[t], int(rows[t]), int(dims[t]), batch_size, content.hexdigest()])


def _rows_needed(file: DlrmFile, t: int) -> int:
    """As many rows as the largest index of table `t` needs; at least 1."""
    indices = file.segment(t, file.lengths.shape[1]).indices
    check_indices(indices, None, f"table {t} of {file.name}")
    return int(indices.max()) + 1 if len(indices) else 1


def _load(path: Path) -> DlrmFile:
    if path.suffix != ".gz":
        return _checked(path.name, _tensors(path, path.name))
    unpacked = _unpack(path)
    try:
        return _checked(path.name, _tensors(unpacked, path.name))
    finally:
        unpacked.unlink()  # the mapping keeps the content until it is no longer used


def _unpack(path: Path) -> Path:
    """Decompress to a temporary file beside `path`, or in the system's folder for such where that is read-only."""
    folder = path.parent if os.access(path.parent, os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as target, gzip.open(path, "rb") as source:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
    except BaseException as error:
        Path(name).unlink()
        if isinstance(error, EOFError | gzip.BadGzipFile | zlib.error):
            raise ValueError(
                f"{path} is truncated or not gzipped ({error}), so its lookups are incomplete; download it again"
            ) from error
        raise
    return Path(name)


def _tensors(path: Path, name: str) -> Any:
    """What the file holds, without unpickling anything but tensors and containers."""
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{name} is truncated or not a file of torch.save, so no lookups can be read from it; download it again, "
            f"or save {FORMAT} with torch 1.6 or newer"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise ValueError(
            f"{name} holds something else than tensors or is damaged ({reason}); objects that could run code are not "
            f"loaded, so give a file that holds {FORMAT}"
        ) from error


def _checked(name: str, content: Any) -> DlrmFile:
    """Check everything but the indices, which are checked table by table.

    Raises:
        ValueError: types, shapes, lengths or offsets are wrong.
    """
    if not isinstance(content, tuple | list) or [type(part) for part in content] != [Tensor] * 3:
        kind = (
            [type(part).__name__ for part in content] if isinstance(content, tuple | list) else type(content).__name__
        )
        raise ValueError(f"{name} holds {kind!s:.120}, not {FORMAT}, so no lookups can be read from it; convert it")
    indices, offsets, lengths = content
    for label, tensor, axes in (("indices", indices, 1), ("offsets", offsets, 1), ("lengths", lengths, 2)):
        if tensor.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"{name} has {label} of type {tensor.dtype}, but they count and name rows, so they must be integers; "
                f"save {FORMAT}"
            )
        if tensor.dim() != axes:
            raise ValueError(f"{name} has {label} of shape {list(tensor.shape)}, not as in {FORMAT}; reshape and save")
    num_tables, batch_size = lengths.shape
    if not num_tables or not batch_size or len(offsets) != num_tables * batch_size + 1:
        raise ValueError(
            f"{name} has {len(offsets)} offsets for lengths of shape [{num_tables}, {batch_size}], where "
            f"{num_tables * batch_size + 1} belong, so samples would get other samples' rows; save all of {FORMAT}"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(indices):
        raise ValueError(
            f"{name} has offsets from {int(offsets[0])} to {int(offsets[-1])} for {len(indices)} indices; they must "
            "run from 0 to the number of indices, so the file is cut or mixed up: download it again"
        )
    for t in range(num_tables):
        _check_lengths(name, t, lengths[t], offsets[t * batch_size : (t + 1) * batch_size + 1])
    return DlrmFile(name, indices, offsets, lengths)


def _check_lengths(name: str, t: int, lengths: Int[Tensor, " B"], offsets: Int[Tensor, " O"]) -> None:
    if int(lengths.min()) < 0:
        b = int(lengths.argmin())
        raise ValueError(
            f"{name} has length {int(lengths[b])} at table {t}, sample {b}; a sample cannot look up fewer than 0 rows, "
            "so the file is damaged: make it again"
        )
    wrong = torch.nonzero(offsets.diff() != lengths).flatten()
    if len(wrong):
        b = int(wrong[0])
        raise ValueError(
            f"{name} has length {int(lengths[b])} at table {t}, sample {b}, but the offsets there are "
            f"{int(offsets[b])} to {int(offsets[b + 1])}; the two must agree, so the file is damaged: make it again"
        )
