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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamshard.files.digests import json_digest
from dreamshard.files.foreign import InputError, reading
from dreamshard.tables import padded_dim
from dreamshard.workloads.lookups import Lookups, WorkloadTable, check_indices, index_dtype
from dreamshard.workloads.table_list import list_tables
from dreamshard.workloads.workload import Workload, WorkloadConfig, choose_tables, table_dims

FORMAT = "(indices int64 [N], offsets int64 [T*B+1], lengths [T, B])"


@dataclass(frozen=True)
class RecordedFile:
    """Lookups of `num_tables` tables by the same samples.

    Attributes:
        segment: the first samples of a table, unchecked, by its number and theirs.
        largest: the largest row of a table.
    """

    name: str
    num_tables: int
    num_samples: int
    segment: Callable[[int, int], Lookups]
    largest: Callable[[int], int]


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
        return workload_of_file(config, path, _tensors(path, path.name), listed)
    with NamedTemporaryFile(prefix=f"{path.name}.", suffix=".tmp") as unpacked:
        with reading(path, "is truncated or not gzipped", "so its lookups are incomplete; download it again"):
            with gzip.open(path, "rb") as source:
                shutil.copyfileobj(source, unpacked, 2**24)
            unpacked.flush()
        file = _tensors(Path(unpacked.name), path.name)  # the memory map keeps the content alive
        return workload_of_file(config, path, file, listed)


def open_arrays(config: WorkloadConfig, path: Path, listed: Path | None) -> Workload:
    """Open a `.npy` or `.npz` file of rows; arguments and errors as for `open_dlrm`."""
    advice = "so no lookups can be read from it; give integers [B, T], or an .npz of X_cat or of an array per table"
    with reading(path, "holds no arrays of rows", advice):
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if path.suffix == ".npy":
            arrays = [content]
        else:
            arrays = [content[name] for name in (["X_cat"] if "X_cat" in content else sorted(content, key=int))]
        shapes = {(array.ndim, len(array), array.dtype.kind in "iu") for array in arrays}
        if len(shapes) != 1 or next(iter(shapes))[::2] != (2, True) or not all(array.size for array in arrays):
            kinds = [f"{array.dtype}{list(array.shape)}" for array in arrays[:5]]
            raise InputError(f"{path} holds {', '.join(kinds)}, {advice}")
    per_table = len(arrays) > 1

    def segment(t: int, batch_size: int) -> Lookups:
        rows = arrays[t][:batch_size] if per_table else arrays[0][:batch_size, t : t + 1]
        indices = torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1))
        return Lookups(indices, torch.arange(batch_size + 1) * rows.shape[1])

    @cache
    def largest() -> list[int]:
        """Of each table, in one pass over the file."""
        return [int(array.max()) for array in arrays] if per_table else arrays[0].max(axis=0).tolist()

    num_tables = len(arrays) if per_table else arrays[0].shape[1]
    file = RecordedFile(path.name, num_tables, len(arrays[0]), segment, lambda t: largest()[t])
    return workload_of_file(config, path, file, listed)


def workload_of_file(
    config: WorkloadConfig, path: Path, file: RecordedFile, list_path: Path | None, names: Sequence[str] | None = None
) -> Workload:
    """The tables that the config asks for; `names` are theirs if the list's are of other files."""

    def rows_of(t: int) -> int:
        return rows[t] or max(1, file.largest(t) + 1)

    if list_path is None:
        names, rows = [f"t{t:04}" for t in range(file.num_tables)], [0] * file.num_tables  # rows are not known yet
        dims = table_dims(config, file.num_tables)
        if config.max_table_bytes is not None:
            rows = [rows_of(t) for t in range(file.num_tables)]
    else:
        listed = list_tables(list_path)
        if len(listed) != file.num_tables:
            raise ValueError(
                f"{list_path} lists {len(listed)} tables, but {path} holds {file.num_tables}; give one line per table in the "
                "file's order"
            )
        names, rows = names or [table.name for table in listed], [table.rows for table in listed]
        dims = table_dims(config, file.num_tables, [padded_dim(table.dim) for table in listed])
    chosen = choose_tables(config, np.asarray(rows, dtype=np.int64), dims).tolist()
    batch_size = min(config.batch_size, file.num_samples)

    def table(position: int) -> WorkloadTable:
        t = chosen[position]
        segment, num_rows = file.segment(t, batch_size), rows_of(t)
        check_indices(segment.indices, num_rows, f"table {t} of {file.name}")
        lookups = Lookups(segment.indices.to(index_dtype(num_rows), copy=True), segment.offsets)
        return WorkloadTable(names[t], num_rows, int(dims[t]), lookups)

    def fingerprint(position: int) -> str:
        t = chosen[position]
        segment = file.segment(t, batch_size if rows[t] else file.num_samples)  # the whole table decides unknown rows
        content = hashlib.sha256(segment.indices.contiguous().numpy().data)
        content.update(segment.offsets.to(torch.int64).numpy().data)
        return json_digest([names[t], rows[t], int(dims[t]), batch_size, content.hexdigest()])

    sizes = f"rows and dims of {list_path.name}" if list_path else "as many rows as the largest index requires"
    description = f"{len(chosen)} of the {file.num_tables} tables of {path.name}, {batch_size} samples, {sizes}"
    return Workload(description, tuple(names[t] for t in chosen), table, fingerprint)


def _tensors(path: Path, name: str) -> RecordedFile:
    """The three tensors of Meta's format, memory-mapped; everything but the indices is checked."""
    advice = f"so no lookups can be read from it; give {FORMAT}"
    with reading(name, "is truncated, or holds something other than tensors", advice):
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    parts = content if isinstance(content, tuple | list) else [content]
    if [type(part) for part in parts] != [Tensor] * 3:
        raise ValueError(f"{name} holds {[type(part).__name__ for part in parts]!s:.120}, {advice}")
    indices, offsets, lengths = parts
    for label, tensor, axes in (("indices", indices, 1), ("offsets", offsets, 1), ("lengths", lengths, 2)):
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if tensor.dtype not in (torch.int64, torch.int32) or tensor.dim() != axes or not is_plain:
            raise ValueError(f"{name} has {label} of type {tensor.dtype} and shape {list(tensor.shape)}; save {FORMAT}")
    num_tables, batch_size = lengths.shape
    if not num_tables or not batch_size or len(offsets) != num_tables * batch_size + 1:
        raise ValueError(
            f"{name} has {len(offsets)} offsets for lengths of shape [{num_tables}, {batch_size}], which need "
            f"{num_tables * batch_size + 1}; save all of {FORMAT}"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(indices):
        raise ValueError(
            f"{name} has offsets from {int(offsets[0])} to {int(offsets[-1])} for {len(indices)} indices; download it again"
        )
    for t in range(num_tables):
        of_table = offsets[t * batch_size : (t + 1) * batch_size + 1]
        wrong = torch.nonzero((of_table.diff() != lengths[t]) | (lengths[t] < 0)).flatten()
        if len(wrong):
            raise ValueError(
                f"{name} has other lengths than offsets at table {t}, sample {int(wrong[0])}; create it again"
            )

    def segment(t: int, samples: int) -> Lookups:
        own = offsets[t * batch_size : t * batch_size + samples + 1]
        return Lookups(indices[int(own[0]) : int(own[-1])], own - own[0])

    def largest(t: int) -> int:
        own = segment(t, batch_size).indices
        check_indices(own, None, f"table {t} of {name}")
        return int(own.max()) if len(own) else 0

    return RecordedFile(name, num_tables, batch_size, segment, largest)
