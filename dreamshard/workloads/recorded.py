"""Files of recorded lookups: Meta's DLRM data sets, MLPerf's arrays, and Criteo's click logs.

- `.pt` or gzipped `.pt.gz`: `torch.save((indices [N], offsets [T*B+1], lengths [T, B]))`, as in
  github.com/facebookresearch/dlrm_datasets.
- `.npy`: `[B, T]` rows, one lookup per sample and table, as `day_0_sparse.npy` of TorchRec's DLRM.
- `.npz`: `X_cat [B, T]` as facebookresearch/dlrm writes it, or an array `[B, K]` of rows per table, as MLPerf has.
- `.tsv`, `train.txt` or `day_0`, plain or gzipped: Criteo's label, 13 integer and 26 hexadecimal categorical columns. An
  empty value is row 0, any other value v is row 1 + v mod (rows - 1). Unlike DLRM's dictionary per file, this needs no pass
  over the file and gives a value the same row in every file, at the price of collisions.

Tensors and `.npy` are memory-mapped, so one table is in memory at a time; a gzipped file is unpacked to a temporary one
first. No code in a file runs.
"""

import gzip
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import torch

from dreamshard.files import InputError, reading
from dreamshard.workloads.lookups import Lookups

_NUMERIC = ("label", *(f"I{i}" for i in range(1, 14)))
_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
_BLOCK_BYTES = 2**23


@dataclass(frozen=True)
class RecordedFile:
    """Lookups of several tables by the same samples.

    Attributes:
        lookups: of a table's first samples, by its position, its rows and their number.
        least_rows: how many rows each table needs for its largest index.
    """

    num_tables: int
    num_samples: int
    lookups: Callable[[int, int, int], Lookups]
    least_rows: Callable[[], Sequence[int]] = tuple


def open_tensors(path: Path, batch_size: int) -> RecordedFile:
    """Open a `.pt` or `.pt.gz` file of Meta's format.

    Raises:
        ValueError: the file is truncated, in another format, or inconsistent.
    """
    name, advice = path.name, "give (indices int64 [N], offsets int64 [T*B+1] ascending from 0 to N, lengths [T, B])"
    with NamedTemporaryFile(prefix=f"{name}.", suffix=".tmp") as unpacked:
        file = path
        if path.suffix == ".gz":
            with reading(path, "is truncated or not gzipped", "download it again"), gzip.open(path, "rb") as source:
                shutil.copyfileobj(source, unpacked, 2**24)
            unpacked.flush()
            file = Path(unpacked.name)
        with reading(name, "holds no consistent tensors", advice):
            # the memory map keeps the file alive
            indices, offsets, lengths = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            num_tables, num_samples = lengths.shape
            is_ascending = bool((offsets.diff() >= 0).all()) and offsets[[0, -1]].tolist() == [0, len(indices)]
            is_integer = {indices.dtype, offsets.dtype} <= {torch.int64, torch.int32} and indices.dim() == 1
            is_whole = num_samples and offsets.shape == (num_tables * num_samples + 1,)
            if not (is_ascending and is_integer and is_whole):
                raise InputError(
                    f"{name} has indices {indices.dtype}{list(indices.shape)}, offsets {offsets.dtype}{list(offsets.shape)}, "
                    f"lengths {list(lengths.shape)}; {advice}"
                )
    starts = offsets[::num_samples].tolist()  # [T+1]

    def lookups(t: int, rows: int, samples: int) -> Lookups:
        bounds = offsets[t * num_samples : t * num_samples + samples + 1]
        return Lookups(indices[int(bounds[0]) : int(bounds[-1])], bounds - bounds[0])

    def least_rows() -> list[int]:
        parts = (indices[first:end] for first, end in pairwise(starts))
        return [1 + int(part.max()) if len(part) else 1 for part in parts]

    return RecordedFile(num_tables, num_samples, lookups, least_rows)


def open_arrays(path: Path, batch_size: int) -> RecordedFile:
    """Open a `.npy` or `.npz` file of rows; raises like `open_tensors`."""
    advice = "give integers [B, T], or an .npz of X_cat or of an array per table"
    with reading(path, "holds no arrays of rows", advice):
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        arrays = [content]
        if path.suffix == ".npz":
            arrays = [content[name] for name in (["X_cat"] if "X_cat" in content else sorted(content, key=int))]
        if any(array.ndim != 2 or array.dtype.kind not in "iu" or not array.size for array in arrays):
            raise InputError(f"{path} holds {', '.join(f'{a.dtype}{list(a.shape)}' for a in arrays[:5])}, {advice}")
    per_table = len(arrays) > 1

    def lookups(t: int, rows: int, samples: int) -> Lookups:
        values = arrays[t][:samples] if per_table else arrays[0][:samples, t : t + 1]
        indices = torch.from_numpy(np.array(values, dtype=np.int64).reshape(-1))
        return Lookups(indices, torch.arange(samples + 1) * values.shape[1])

    def least_rows() -> list[int]:
        largest = [array.max() for array in arrays] if per_table else arrays[0].max(axis=0)
        return [1 + int(row) for row in largest]

    num_tables = len(arrays) if per_table else arrays[0].shape[1]
    return RecordedFile(num_tables, min(map(len, arrays)), lookups, least_rows)


def open_criteo(path: Path, batch_size: int) -> RecordedFile:
    """Open a log of Criteo's, of which only `batch_size` lines are read; one lookup per sample and table.

    Raises:
        ValueError: the file is empty or truncated, or a line is in another format.
    """
    kinds = {**dict.fromkeys(_NUMERIC, pa.int64()), **dict.fromkeys(_CATEGORICAL, pa.string())}
    parts, done = [], 0
    with (
        reading(path, "is not a complete Criteo log", "download it again"),
        pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as stream,
        pyarrow.csv.open_csv(
            stream,
            pyarrow.csv.ReadOptions(column_names=list(kinds), block_size=_BLOCK_BYTES),
            pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
            pyarrow.csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True),
        ) as blocks,
    ):
        for block in blocks:
            part = block.slice(0, batch_size - done)
            parts.append(np.stack([_values(part.column(name)) for name in _CATEGORICAL]))
            done += part.num_rows
            if done == batch_size:
                break
        values = np.concatenate(parts, axis=1)  # [26, B], -1 if missing

    def lookups(t: int, rows: int, samples: int) -> Lookups:
        hashed = torch.from_numpy(values[t, :samples])
        return Lookups(torch.where(hashed < 0, 0, 1 + hashed % max(1, rows - 1)), torch.arange(samples + 1))

    return RecordedFile(len(_CATEGORICAL), values.shape[1], lookups)


def _values(column: pa.StringArray) -> npt.NDArray[np.int64]:
    """Hexadecimal numbers; -1 if missing."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices.fill_null(len(texts)), dtype=np.int64)
    return np.asarray([*(int(text, 16) for text in texts), -1], dtype=np.int64)[codes]
