"""Files of recorded lookups: Meta's DLRM data sets as `.pt`, and arrays as MLPerf's `.npy` and `.npz`.

- `.pt` or gzipped `.pt.gz`: `torch.save((indices [N], offsets [T*B+1], lengths [T, B]))`, as in
  github.com/facebookresearch/dlrm_datasets.
- `.npy`: `[B, T]` rows, one lookup per sample and table, as `day_0_sparse.npy` of TorchRec's DLRM.
- `.npz`: `X_cat [B, T]` as facebookresearch/dlrm writes it, or an array `[B, K]` of rows per table, as MLPerf has.

Files are memory-mapped if they can be, so one table is in memory at a time; a gzipped one is unpacked to a temporary file
first. No code in a file runs.
"""

import gzip
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.files.digests import json_digest
from dreamshard.files.foreign import InputError, reading
from dreamshard.tables import padded_dim
from dreamshard.workloads.lookups import Lookups, WorkloadTable, check_indices, index_dtype
from dreamshard.workloads.table_list import ListedTable, list_tables
from dreamshard.workloads.workload import Workload, WorkloadConfig, choose_tables, table_dims

FORMAT = "(indices int64 [N], offsets int64 [T*B+1], lengths [T, B])"


class DlrmFile:
    """The three tensors of Meta's format, memory-mapped.

    Sample `b` of table `t` looks up the `lengths[t, b]` rows `indices[offsets[t*B+b]:offsets[t*B+b+1]]`.
    """

    def __init__(
        self, name: str, indices: Int[Tensor, " N"], offsets: Int[Tensor, " M"], lengths: Int[Tensor, "T B"]
    ) -> None:
        self.name, self.indices, self.offsets = name, indices, offsets
        self.num_tables, self.num_samples = lengths.shape

    def segment(self, t: int, batch_size: int) -> Lookups:
        """The first `batch_size` samples of table `t`, memory-mapped and unchecked."""
        start = t * self.num_samples
        offsets = self.offsets[start : start + batch_size + 1]
        return Lookups(self.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def rows_needed(self, t: int) -> int:
        """Rows that the largest index of table `t` requires, at least 1."""
        indices = self.segment(t, self.num_samples).indices
        check_indices(indices, None, f"table {t} of {self.name}")
        return int(indices.max()) + 1 if len(indices) else 1


@dataclass(frozen=True)
class ArrayFile:
    """Arrays of rows.

    Attributes:
        arrays: one `[B, T]`, or `T` of `[B, K]`.
    """

    name: str
    arrays: Sequence[npt.NDArray[np.integer]]

    @property
    def num_tables(self) -> int:
        """One per array, or per column of a single one."""
        return len(self.arrays) if len(self.arrays) > 1 else int(self.arrays[0].shape[1])

    @property
    def num_samples(self) -> int:
        """Samples in the file."""
        return len(self.arrays[0])

    def segment(self, t: int, batch_size: int) -> Lookups:
        """The first `batch_size` samples of table `t`, unchecked."""
        rows = self.arrays[t][:batch_size] if len(self.arrays) > 1 else self.arrays[0][:batch_size, t : t + 1]
        indices = torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1))
        return Lookups(indices, torch.arange(batch_size + 1) * rows.shape[1])

    def rows_needed(self, t: int) -> int:
        """Rows that the largest index of table `t` requires, at least 1."""
        return max(1, self._largest[t] + 1)

    @cached_property
    def _largest(self) -> list[int]:
        """The largest row of each table; one pass over the file."""
        if len(self.arrays) > 1:
            return [int(array.max()) for array in self.arrays]
        return [int(value) for value in self.arrays[0].max(axis=0)]


def open_dlrm(config: WorkloadConfig, path: Path, listed: Path | None) -> Workload:
    """Open a `.pt` or `.pt.gz` file of Meta's format.

    Args:
        config: which tables and samples to take.
        path: the file.
        listed: list of the tables' names, hash sizes and dims, one per table in the file's order. Without it a table has as
            many rows as its largest index requires.

    Raises:
        ValueError: the file is missing, truncated, in another format, or inconsistent. Indices are checked when their
            table is read.
    """
    if path.suffix != ".gz":
        return _workload(config, path, _checked(path.name, _tensors(path, path.name)), listed)
    with NamedTemporaryFile(prefix=f"{path.name}.", suffix=".tmp") as unpacked:
        with reading(path, "is truncated or not gzipped", "so its lookups are incomplete; download it again"):
            with gzip.open(path, "rb") as source:
                shutil.copyfileobj(source, unpacked, 2**24)
            unpacked.flush()
        content = _tensors(Path(unpacked.name), path.name)  # the memory map keeps the content alive
        return _workload(config, path, _checked(path.name, content), listed)


def open_arrays(config: WorkloadConfig, path: Path, listed: Path | None) -> Workload:
    """Open a `.npy` or `.npz` file of rows; arguments and errors as for `open_dlrm`."""
    advice = "so no lookups can be read from it; give integers [B, T], or an .npz of X_cat or of an array per table"
    with reading(path, "holds no arrays of rows", advice):
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if path.suffix == ".npy":
            arrays = [content]
        elif "X_cat" in content:
            arrays = [content["X_cat"]]
        else:
            arrays = [content[name] for name in sorted(content, key=int)]
        shapes = {(array.ndim, len(array), array.dtype.kind in "iu") for array in arrays}
        if len(shapes) != 1 or next(iter(shapes))[::2] != (2, True) or not all(array.size for array in arrays):
            kinds = [f"{array.dtype}{list(array.shape)}" for array in arrays[:5]]
            raise InputError(f"{path} holds {', '.join(kinds)}, {advice}")
    return _workload(config, path, ArrayFile(path.name, arrays), listed)


def _workload(config: WorkloadConfig, path: Path, file: DlrmFile | ArrayFile, list_path: Path | None) -> Workload:
    listed = [] if list_path is None else list_tables(list_path)
    if listed and len(listed) != file.num_tables:
        raise ValueError(
            f"{list_path} lists {len(listed)} tables, but {path} holds {file.num_tables}; give one line per table in the "
            "file's order"
        )
    names, rows, dims = _sizes(config, file, listed)
    chosen = choose_tables(config, np.asarray(rows, dtype=np.int64), dims).tolist()
    batch_size = min(config.batch_size, file.num_samples)

    def table(position: int) -> WorkloadTable:
        t = chosen[position]
        num_rows = rows[t] or file.rows_needed(t)
        segment = file.segment(t, batch_size)
        check_indices(segment.indices, num_rows, f"table {t} of {file.name}")
        lookups = Lookups(segment.indices.to(index_dtype(num_rows), copy=True), segment.offsets)
        return WorkloadTable(names[t], num_rows, int(dims[t]), lookups)

    def fingerprint(position: int) -> str:
        t = chosen[position]
        segment = file.segment(t, batch_size if rows[t] else file.num_samples)  # the whole table decides unknown rows
        content = hashlib.sha256(segment.indices.contiguous().numpy().data)
        content.update(segment.offsets.to(torch.int64).numpy().data)
        return json_digest([names[t], rows[t], int(dims[t]), batch_size, content.hexdigest()])

    sizes = f"sizes of {list_path.name}" if list_path else "as many rows as the largest index requires"
    description = f"{len(chosen)} of the {file.num_tables} tables of {path.name}, {batch_size} samples, {sizes}"
    return Workload(description, tuple(names[t] for t in chosen), table, fingerprint)


def _sizes(
    config: WorkloadConfig, file: DlrmFile | ArrayFile, listed: Sequence[ListedTable]
) -> tuple[list[str], list[int], npt.NDArray[np.int64]]:
    """Name, rows and dim of each table; 0 rows if they are not known yet."""
    if listed:
        own = [padded_dim(table.dim) for table in listed]
        return [table.name for table in listed], [table.rows for table in listed], table_dims(config, len(own), own)
    names = [f"t{t:04}" for t in range(file.num_tables)]
    is_limited = config.max_table_bytes is not None
    rows = [file.rows_needed(t) if is_limited else 0 for t in range(file.num_tables)]
    return names, rows, table_dims(config, file.num_tables)


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
        if tensor.dtype not in (torch.int64, torch.int32) or tensor.dim() != axes:
            raise ValueError(f"{name} has {label} of type {tensor.dtype} and shape {list(tensor.shape)}; save {FORMAT}")
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{name} has {label} that are sparse or without values; save {FORMAT} as plain tensors")
    num_tables, batch_size = lengths.shape
    if not num_tables or not batch_size or len(offsets) != num_tables * batch_size + 1:
        raise ValueError(
            f"{name} has {len(offsets)} offsets for lengths of shape [{num_tables}, {batch_size}], which need "
            f"{num_tables * batch_size + 1}; save all of {FORMAT}"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(indices):
        raise ValueError(
            f"{name} has offsets from {int(offsets[0])} to {int(offsets[-1])} for {len(indices)} indices, so it is cut or "
            "mixed up; download it again"
        )
    for t in range(num_tables):
        of_table = offsets[t * batch_size : (t + 1) * batch_size + 1]
        wrong = torch.nonzero((of_table.diff() != lengths[t]) | (lengths[t] < 0)).flatten()
        if len(wrong):
            b = int(wrong[0])
            raise ValueError(
                f"{name} has length {int(lengths[t, b])} at table {t}, sample {b}, but the offsets there are "
                f"{int(of_table[b])} to {int(of_table[b + 1])}, so it is damaged; create it again"
            )
    return DlrmFile(name, indices, offsets, lengths)
