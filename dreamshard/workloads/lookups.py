"""Rows that each training sample looks up: in memory, as Parquet, their statistics, and other programs' files.

An Arrow list array *is* (offsets, values), so a Parquet file reaches the fused operator without a copy. Recorded lookups are
Meta's DLRM datasets, MLPerf's arrays, and Criteo's click logs:

- `.pt` or gzipped `.pt.gz`: `torch.save((indices [N], offsets [T*B+1], lengths [T, B]))`, as in
  github.com/facebookresearch/dlrm_datasets.
- `.npy`: `[B, T]` rows, one lookup per sample and table, as `day_0_sparse.npy` of TorchRec's DLRM.
- `.npz`: `X_cat [B, T]` as facebookresearch/dlrm writes it, or an array `[B, K]` of rows per table, as MLPerf has.
- `.tsv`, `train.txt` or `day_0`, plain or gzipped: Criteo's label, 13 integer and 26 hexadecimal categorical columns. An
  empty value is row 0, any other value v is row 1 + v mod (rows - 1), the same in every file, unlike in DLRM's dictionaries.

Tensors and `.npy` are memory-mapped; a gzipped file is unpacked to a temporary one first. No code in a file runs.
"""

import gzip
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.files import InputError, json_digest, reading, replacing
from dreamshard.tables import NUM_BINS, ROW_BLOCKS, ModelTable, Tables, block_shares, padded_dim

UNUSED_S = 30 * 86_400.0
"""Time after which a local copy of remote lookups is removed; it is fetched again if it is read."""


@dataclass(frozen=True)
class Lookups:
    """Rows of one table that a batch of samples looks up.

    Attributes:
        indices: `[N]` rows, sample after sample; int32, or int64 if the rows need it.
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
        offsets = self.offsets[: batch_size + 1]
        return Lookups(self.indices[: int(offsets[-1])], offsets)

    def of_rows(self, first: int, end: int) -> "Lookups":
        """Those of rows `first` to `end` (exclusive), numbered from the first, of the same samples."""
        inside = (self.indices >= first) & (self.indices < end)
        before: Int[Tensor, " O"] = nn.functional.pad(inside.cumsum(0), (1, 0))
        return Lookups(self.indices[inside] - first, before[self.offsets.long()])

    def dealt(self, count: int) -> "Lookups":
        """The same lookups, dealt in turn to `count` bags of each sample: `f * B + b` is bag `f` of sample `b`."""
        turns = torch.arange(count - 1, -1, -1, device=self.offsets.device)
        lengths = ((self.offsets + turns[:, None]) // count).diff()  # [count, B]
        offsets: Int[Tensor, " P"] = nn.functional.pad(lengths.flatten().cumsum(0), (1, 0))
        return Lookups(torch.cat([self.indices[bag::count] for bag in range(count)]), offsets)


LookupSource = Callable[[str], Lookups]
"""Returns a table's lookups by its name; picklable, so that ranks in other processes can use it."""


@dataclass(frozen=True)
class LookupFiles:
    """A `LookupSource` over one Parquet file per table.

    Attributes:
        paths: table name -> local path, or address of a remote file (`s3://...`).
        copies: local folder for copies of remote files, whose names say their content; None if all are local.
    """

    paths: Mapping[str, Path | str]
    copies: Path | None = None

    def __call__(self, name: str) -> Lookups:
        """Read the lookups of table `name`; a ValueError says that it has no file, or that this holds no lookups."""
        if name not in self.paths:
            raise ValueError(f"there are no lookups of table {name!r}, so it cannot be measured; ingest its workload")
        file = self.paths[name]
        if self.copies is None:
            return read_lookups(file)
        files, path = fsspec.core.url_to_fs(str(file))
        copy = self.copies / path.rpartition("/")[2]
        if not copy.exists():
            with suppress(FileNotFoundError), replacing(copy) as temporary:  # ranks write the same bytes
                files.get_file(path, str(temporary))
            for other in self.copies.iterdir():
                if time.time() - other.stat().st_mtime > UNUSED_S:
                    other.unlink(missing_ok=True)
        return read_lookups(copy)


def write_lookups(path: str | Path, lookups: Lookups) -> None:
    """Write one table's batch to `path` atomically: one column `indices`, a row per sample; fewer than 2 ** 31 lookups."""
    values = pa.array(lookups.indices.numpy())
    kind = pa.list_(pa.field("element", values.type, nullable=False))
    samples = pa.ListArray.from_arrays(pa.array(lookups.offsets.numpy(), pa.int32()), values, type=kind)
    table = pa.table([samples], schema=pa.schema([pa.field("indices", kind, nullable=False)]))
    with replacing(Path(path)) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=max(1, lookups.batch_size),  # one chunk when read, so no copy
            use_dictionary=False,
            column_encoding={"indices.list.element": "BYTE_STREAM_SPLIT"},
            compression="lz4",  # the high bytes are mostly zero: 30 % smaller at no cost in time
            write_statistics=False,
        )


def read_lookups(path: str | Path) -> Lookups:
    """Read a file of `write_lookups` without a copy, not to be written to; a ValueError says what is wrong with it.

    Rows are checked where they are used, by `check_indices`.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no lookups file {path}; ingest the workload again to make it")
    with reading(path, "cannot be read as lookups", "write it again"):
        file = pq.ParquetFile(path, memory_map=True)
        samples = file.read(columns=["indices"], use_threads=False).column("indices")
        if not pa.types.is_list(samples.type) or samples.type.value_type not in (pa.int32(), pa.int64()):
            raise InputError(f"{path} has indices of type {samples.type}, not list<int32 or int64>; write them as such")
        array = samples.chunk(0) if samples.num_chunks == 1 else samples.combine_chunks()
        array.validate()
        if array.null_count or array.values.null_count:
            raise InputError(f"{path} has missing values where lookups should be; ingest the table again")
        return Lookups(torch.utils.dlpack.from_dlpack(array.values), torch.utils.dlpack.from_dlpack(array.offsets))


def check_indices(indices: Int[Tensor, " N"], rows: int, name: str) -> None:
    """Raise a ValueError if an index names no row of the table."""
    low, high = map(int, indices.aminmax()) if len(indices) else (0, 0)
    if low < 0:
        raise ValueError(f"{name} has a negative index ({low}); give 0 or more, or remap ids")
    if high >= rows:
        raise ValueError(f"{name} has index {high} outside its {rows} rows; give its hash size, or remap ids")


def index_dtype(rows: int) -> torch.dtype:
    """int32, or int64 for a table whose rows need it."""
    return torch.int32 if rows <= 2**31 else torch.int64


STATISTICS = ("bins", "lookups", "pooling_factor", "unique_rows")
"""Columns of `Tables` that are counted in lookups, of tables that need not say them."""


def as_tables(listed: Sequence[ModelTable]) -> Tables:
    """`Tables` of tables whose statistics are known, with dims rounded up to a multiple of 4."""
    columns = {name: [getattr(table, name) for table in listed] for name in ("rows", "poolings", *STATISTICS)}
    columns["dim"] = [padded_dim(table.dim) for table in listed]
    arrays = {name: torch.from_numpy(np.array(values)) for name, values in columns.items()}
    shares = block_shares([table.block_share for table in listed])
    return Tables(tuple(table.name for table in listed), **arrays, block_share=shares)


def statistics(table: ModelTable, lookups: Lookups) -> Tables:
    """`Tables` of one table, from one batch of its lookups; raises like `with_statistics`."""
    return as_tables([with_statistics(table, lookups)])


def with_statistics(table: ModelTable, lookups: Lookups) -> ModelTable:
    """The table with statistics of one batch of its lookups; a ValueError says that the batch has no samples."""
    num_lookups = len(lookups.indices)
    if lookups.batch_size < 1:
        raise ValueError(f"table {table.name!r} has a batch without samples, so it has no pooling factor; ingest more")
    ids, counts = np.unique(lookups.indices.numpy(), return_counts=True)  # [U]
    blocks = min(table.rows, ROW_BLOCKS)
    by_block = np.bincount(ids.astype(np.int64) * blocks // table.rows, counts, blocks)
    return replace(
        table,
        pooling_factor=num_lookups / lookups.batch_size,
        bins=tuple(bin_counts(counts) / max(1, len(counts))),
        lookups=num_lookups,
        unique_rows=len(counts),
        block_share=tuple(by_block / num_lookups) if num_lookups else (1.0,),
    )


def bin_counts(counts: Int[np.ndarray, " U"]) -> Float[np.ndarray, " 17"]:
    """Number of rows whose count lies in (0,1], (1,2], (2,4] ... (32768, inf)."""
    bins = np.minimum(np.frexp((counts - 1).astype(np.float64))[1], NUM_BINS - 1)  # bit length of count - 1
    return np.bincount(bins, minlength=NUM_BINS).astype(np.float64)


def dataset_version(tables: Tables) -> str:
    """Content hash of a dataset, 12 hexadecimal digits: the same for the same tables in any order."""
    columns = [values.tolist() for values in tables.columns(torch.arange(len(tables))).values()]
    return json_digest(sorted(zip(tables.names, *columns, strict=True)))[:12]


_NUMERIC = ("label", *(f"I{i}" for i in range(1, 14)))
_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
_BLOCK_BYTES = 2**23


@dataclass(frozen=True)
class RecordedFile:
    """Lookups of several tables by the same samples.

    Attributes:
        lookups: of a table's first samples, by its position, its rows and their number.
        least_rows: that each table needs for its largest index.
    """

    num_tables: int
    num_samples: int
    lookups: Callable[[int, int, int], Lookups]
    least_rows: Callable[[], Sequence[int]] = tuple


def open_tensors(path: Path, batch_size: int) -> RecordedFile:
    """Open a `.pt` or `.pt.gz` file of Meta's format; a ValueError says that it is truncated, inconsistent or another."""
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

    def lookups(t: int, rows: int, samples: int) -> Lookups:
        bounds = offsets[t * num_samples : t * num_samples + samples + 1]
        return Lookups(indices[int(bounds[0]) : int(bounds[-1])], bounds - bounds[0])

    def least_rows() -> list[int]:
        by_table = indices.tensor_split(offsets[num_samples:-1:num_samples].tolist())
        return [1 + int(rows.max()) if len(rows) else 1 for rows in by_table]

    return RecordedFile(num_tables, num_samples, lookups, least_rows)


def open_arrays(path: Path, batch_size: int) -> RecordedFile:
    """Open a `.npy` or `.npz` file of rows; raises like `open_tensors`."""
    advice = "give integers [B, T], or an .npz of X_cat or of an array per table"
    with reading(path, "holds no arrays of rows", advice):
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        stored = [content]
        if path.suffix == ".npz":
            stored = [content[name] for name in (["X_cat"] if "X_cat" in content else sorted(content, key=int))]
        if any(array.ndim != 2 or array.dtype.kind not in "iu" or not array.size for array in stored):
            raise InputError(f"{path} holds {', '.join(f'{a.dtype}{list(a.shape)}' for a in stored[:5])}, {advice}")
    arrays = stored if len(stored) > 1 else np.split(stored[0], stored[0].shape[1], axis=1)  # [B, K] of each table

    def lookups(t: int, rows: int, samples: int) -> Lookups:
        indices = np.array(arrays[t][:samples], dtype=np.int64)
        return Lookups(torch.from_numpy(indices.reshape(-1)), torch.arange(samples + 1) * indices.shape[1])

    def least_rows() -> list[int]:
        largest = [array.max() for array in stored] if len(stored) > 1 else stored[0].max(axis=0)
        return [1 + int(row) for row in largest]

    return RecordedFile(len(arrays), min(map(len, arrays)), lookups, least_rows)


def open_criteo(path: Path, batch_size: int) -> RecordedFile:
    """Open the first lines of a Criteo log, with one lookup per sample and table; raises like `open_tensors`."""
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


def _values(column: pa.StringArray) -> Int[np.ndarray, " B"]:
    """Hexadecimal numbers; -1 if missing."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices.fill_null(len(texts)), dtype=np.int64)
    return np.asarray([*(int(text, 16) for text in texts), -1], dtype=np.int64)[codes]
