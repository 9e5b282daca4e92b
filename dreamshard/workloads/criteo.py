"""Criteo's click logs: tab-separated label, 13 integer and 26 hexadecimal categorical columns, plain or gzipped.

An empty value is row 0. Any other value v is row 1 + v mod (rows - 1), where rows is the column's cardinality. Unlike DLRM's
dictionary per file, this needs no pass over the file and gives a value the same row in every file, at the price of
collisions.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import torch

from dreamshard.files.foreign import InputError, brief, reading
from dreamshard.workloads.dlrm import RecordedFile, workload_of_file
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.table_list import list_tables
from dreamshard.workloads.workload import Workload, WorkloadConfig, bundled_lists

NUMERIC = ("label", *(f"I{i}" for i in range(1, 14)))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
BLOCK_BYTES = 2**23


def open_criteo(config: WorkloadConfig, path: Path, listed: Path | None) -> Workload:
    """The 26 tables of a log, with one lookup per sample each; only `batch_size` lines are read.

    Args:
        config: which tables and samples to take.
        path: `.tsv`, `train.txt` or `day_0`, each also with `.gz`.
        listed: list of the 26 tables' sizes. Without it they are those of MLPerf's DLRM for a day of the terabyte set, else
            those of Criteo Kaggle.

    Raises:
        ValueError: the file is empty or truncated, or a line is in another format.
    """
    is_day = re.match(r"day_\d+", path.name) is not None
    source = listed or bundled_lists()["mlperf-dlrm-dcnv2" if is_day else "criteo-kaggle"]
    rows = [table.rows for table in list_tables(source)]
    values = _read(path, config.batch_size)  # 26 x [B]

    def segment(t: int, batch_size: int) -> Lookups:
        hashed = values[t][:batch_size]  # [B], -1 where missing
        indices = np.where(hashed < 0, 0, 1 + hashed % max(1, rows[t] - 1))
        return Lookups(torch.from_numpy(indices), torch.arange(batch_size + 1))

    file = RecordedFile(path.name, len(CATEGORICAL), len(values[0]), segment, lambda t: rows[t] - 1)
    return workload_of_file(config, path, file, source, CATEGORICAL)


def _read(path: Path, num_samples: int) -> list[npt.NDArray[np.int64]]:
    """`[B]` values of each column, -1 where missing."""
    parts: list[list[npt.NDArray[np.int64]]] = [[] for _ in CATEGORICAL]
    done = 0
    advice = "each line has a label, 13 integers and 26 hexadecimal values, separated by tabs: download it again"
    with reading(path, "is not a Criteo log or is truncated", advice):
        for block in _blocks(path):
            take = block.slice(0, num_samples - done)
            for part, name in zip(parts, CATEGORICAL, strict=True):
                part.append(_values(take.column(name), f"{path}, column {name}", done))
            done += take.num_rows
            if done >= num_samples:
                break
    if not done:
        raise ValueError(f"{path} is empty, so there are no lookups to ingest; download it again")
    return [np.concatenate(part) for part in parts]


def _blocks(path: Path) -> Iterator[pa.RecordBatch]:
    is_gzip = path.suffix == ".gz"
    block_bytes = BLOCK_BYTES if is_gzip else min(BLOCK_BYTES, path.stat().st_size + 1)  # each is allocated whole
    with (
        pa.input_stream(str(path), compression="gzip" if is_gzip else None) as stream,
        pyarrow.csv.open_csv(
            stream,
            read_options=pyarrow.csv.ReadOptions(column_names=[*NUMERIC, *CATEGORICAL], block_size=block_bytes),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={**dict.fromkeys(NUMERIC, pa.int64()), **dict.fromkeys(CATEGORICAL, pa.string())},
                null_values=[""],
                strings_can_be_null=True,
            ),
        ) as reader,
    ):
        yield from reader


def _values(column: pa.StringArray, where: str, lines_before: int) -> npt.NDArray[np.int64]:
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    for text in texts:
        if not re.fullmatch("[0-9a-fA-F]{1,8}", text):
            line = lines_before + column.index(text).as_py() + 1
            raise InputError(
                f"{where}, line {line}: {brief(text)} is not a hexadecimal number of up to 8 digits; correct it"
            )
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return np.asarray(np.asarray([*(int(text, 16) for text in texts), -1], dtype=np.int64)[codes])
