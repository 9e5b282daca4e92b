"""Meta's DLRM data sets: `torch.save((indices [N], offsets [T*B+1], lengths [T, B]))`, as `.pt` or gzipped `.pt.gz`.

Source of the format: github.com/facebookresearch/dlrm_datasets. A file is memory-mapped, so one table is in memory at a
time; a gzipped one is unpacked to a temporary file first. No code in a file runs.
"""

import gzip
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.files.digests import json_digest
from dreamshard.files.foreign import reading
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import Lookups, WorkloadTable, check_indices, index_dtype
from dreamshard.workloads.source import Workload, choose_tables, table_dims
from dreamshard.workloads.table_list import list_tables

FORMAT = "(indices int64 [N], offsets int64 [T*B+1], lengths [T, B])"


@dataclass(frozen=True)
class DlrmFile:
    """The three tensors of a file, memory-mapped.

    Sample `b` of table `t` looks up the `lengths[t, b]` rows `indices[offsets[t*B+b]:offsets[t*B+b+1]]`.
    """

    name: str
    indices: Int[Tensor, " N"]
    offsets: Int[Tensor, " M"]
    lengths: Int[Tensor, "T B"]

    def segment(self, t: int, batch_size: int) -> Lookups:
        """The first `batch_size` samples of table `t`, memory-mapped and unchecked."""
        start = t * self.lengths.shape[1]
        offsets = self.offsets[start : start + batch_size + 1]
        return Lookups(self.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def rows_needed(self, t: int) -> int:
        """Rows that the largest index of table `t` requires, at least 1."""
        indices = self.segment(t, self.lengths.shape[1]).indices
        check_indices(indices, None, f"table {t} of {self.name}")
        return int(indices.max()) + 1 if len(indices) else 1


def open_dlrm(config: WorkloadConfig, path: Path) -> Workload:
    """Open a `.pt` or `.pt.gz` file of Meta's format.

    The file has no hash sizes and dims. They are read from `<name>.tables.csv` beside it, with one line per table in the
    file's order; without that list, a table has as many rows as its largest index requires.

    Raises:
        ValueError: the file is missing, truncated, in another format, or inconsistent. Indices are checked when their
            table is read.
    """
    file = _load(path)
    num_tables, file_batch = file.lengths.shape
    list_path = Path(list_beside(str(path)))
    listed = list_tables(list_path) if list_path.is_file() else None
    if listed is not None and len(listed) != num_tables:
        raise ValueError(
            f"{list_path} lists {len(listed)} tables, but {path} holds {num_tables}, so it is unclear which line "
            "describes which table; give one line per table in the file's order"
        )
    if listed is not None:
        names, rows, own_dims = zip(*((table.name, table.rows, table.dim) for table in listed), strict=True)
    else:
        names, own_dims = tuple(f"t{t:04}" for t in range(num_tables)), None
        known = config.max_table_bytes is not None
        rows = tuple(file.rows_needed(t) if known else 0 for t in range(num_tables))  # 0: not known
    dims = table_dims(config, num_tables, own_dims)
    chosen = choose_tables(config, np.asarray(rows, dtype=np.int64), dims).tolist()
    batch_size = min(config.batch_size, file_batch)

    def table(position: int) -> WorkloadTable:
        t = chosen[position]
        num_rows = rows[t] or file.rows_needed(t)
        segment = file.segment(t, batch_size)
        check_indices(segment.indices, num_rows, f"table {t} of {file.name}")
        lookups = Lookups(segment.indices.to(index_dtype(num_rows), copy=True), segment.offsets)
        return WorkloadTable(names[t], num_rows, int(dims[t]), lookups)

    def fingerprint(position: int) -> str:
        t = chosen[position]
        segment = file.segment(t, batch_size if rows[t] else file_batch)  # the whole table decides unknown rows
        content = hashlib.sha256(segment.indices.contiguous().numpy().data)
        content.update(segment.offsets.to(torch.int64).numpy().data)
        return json_digest([names[t], rows[t], int(dims[t]), batch_size, content.hexdigest()])

    description = f"{len(chosen)} of the {num_tables} tables of {path.name}, {batch_size} samples"
    return Workload(description, tuple(names[t] for t in chosen), table, fingerprint)


def list_beside(file: str) -> str:
    """The list of tables that may accompany a `.pt` or `.pt.gz`, at a path or URI."""
    return file.removesuffix(".gz").removesuffix(".pt") + ".tables.csv"


def _load(path: Path) -> DlrmFile:
    if path.suffix != ".gz":
        return _checked(path.name, _tensors(path, path.name))
    with NamedTemporaryFile(prefix=f"{path.name}.", suffix=".tmp") as unpacked:
        with reading(path, "is truncated or not gzipped", "so its lookups are incomplete; download it again"):
            with gzip.open(path, "rb") as source:
                shutil.copyfileobj(source, unpacked, 2**24)
            unpacked.flush()
        return _checked(path.name, _tensors(Path(unpacked.name), path.name))  # the memory map keeps the content alive


def _tensors(path: Path, name: str) -> Any:
    """Content of the file, its tensors memory-mapped."""
    with reading(
        name, "is truncated, or holds something other than tensors", f"so no lookups can be read from it; give {FORMAT}"
    ):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _checked(name: str, content: Any) -> DlrmFile:
    """Check everything but the indices, which are checked table by table.

    Raises:
        ValueError: types, shapes, lengths or offsets are wrong.
    """
    parts = content if isinstance(content, tuple | list) else [content]
    if [type(part) for part in parts] != [Tensor] * 3:
        kind = [type(part).__name__ for part in parts]
        raise ValueError(f"{name} holds {kind!s:.120}, not {FORMAT}, so no lookups can be read from it; convert it")
    indices, offsets, lengths = content
    for label, tensor, axes in (("indices", indices, 1), ("offsets", offsets, 1), ("lengths", lengths, 2)):
        if tensor.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"{name} has {label} of type {tensor.dtype}, but they count and name rows, so they must be integers; "
                f"save {FORMAT}"
            )
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{name} has {label} that are sparse or without values; save {FORMAT} as plain tensors")
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
            "so the file is damaged: create it again"
        )
    wrong = torch.nonzero(offsets.diff() != lengths).flatten()
    if len(wrong):
        b = int(wrong[0])
        raise ValueError(
            f"{name} has length {int(lengths[b])} at table {t}, sample {b}, but the offsets there are "
            f"{int(offsets[b])} to {int(offsets[b + 1])}; the two must agree, so the file is damaged: create it again"
        )
