"""Plain tensors that `torch.save` wrote: a zip archive of a small pickle, `data.pkl`, and an entry of bytes per storage.

`torch.load` obeys the pickle, which may ask for any amount of memory, and unpacks what is compressed. Here the pickle is
interpreted (`tensor_pickle`), nothing is unpacked, and storages are memory-mapped.
"""

import io
import sys
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamshard.workloads.tensor_pickle import StoredTensor, interpreted

MOST_PICKLE_BYTES = 2**16
"""Of `data.pkl`; that of three tensors has some 300 bytes."""

ARCHIVE_START = b"PK\x03\x04"
"""The first bytes of every file of `torch.save`."""

_DIRECTORY_BYTES = 2**20  # of an archive's list of entries; that of three tensors has some 700 bytes
_HEADER_BYTES = 30  # before an entry, and then its name and extra field, whose lengths it ends with
_ENCRYPTED = 1


def load_tensors(path: Path) -> Any:
    """The value that a file holds; if it is a tensor, or a list or tuple with tensors, these are memory-mapped.

    Raises:
        TypeError: it holds something other than tensors, plain values and containers, has entries that are compressed or
            shorter than their tensors, or numbers in the byte order of other machines.
        Exception: of the zip archive, where it is damaged.
    """
    with _BoundedReads(path) as file, zipfile.ZipFile(file) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise TypeError("it has no data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{folder}byteorder")
        if order is not None and _content(archive, order) != sys.byteorder.encode():
            raise TypeError(f"its numbers are not {sys.byteorder}-endian, as those of this machine are")
        value = interpreted(_content(archive, entries[pickles[0]]))
        mapped: dict[int, Tensor] = {}

        def tensor(part: Any) -> Any:
            if isinstance(part, StoredTensor):
                if id(part) not in mapped:
                    mapped[id(part)] = _mapped(path, file, entries.get(f"{folder}data/{part.key}"), part)
                return mapped[id(part)]
            return part

        return type(value)(map(tensor, value)) if isinstance(value, list | tuple) else tensor(value)


class _BoundedReads(io.BufferedReader):
    """A file of which no more is read at once than an archive's list of entries may have, whatever the archive says."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _DIRECTORY_BYTES if size is None or size < 0 else size
        if wanted > _DIRECTORY_BYTES:
            raise TypeError(f"its list of entries claims {wanted:,} bytes")
        return super().read(wanted)


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    _check_stored(entry)
    if entry.file_size > MOST_PICKLE_BYTES:
        raise TypeError(f"its {entry.filename[:80]} has {entry.file_size:,} bytes, more than {MOST_PICKLE_BYTES:,}")
    return archive.read(entry)


def _check_stored(entry: zipfile.ZipInfo) -> None:
    stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
    if not stored or entry.flag_bits & _ENCRYPTED:
        raise TypeError(f"its {entry.filename[:80]} is compressed, which torch.save never does")


def _mapped(path: Path, file: io.BufferedReader, entry: zipfile.ZipInfo | None, stored: StoredTensor) -> Tensor:
    """The tensor on the bytes of its entry."""
    storage_bytes = stored.storage_values * stored.dtype.itemsize
    if entry is None or entry.file_size < storage_bytes:
        raise TypeError(f"it lacks bytes of storage {stored.key[:80]}, which has {storage_bytes:,}")
    _check_stored(entry)
    if prod(stored.shape) > stored.storage_values:
        raise TypeError("a tensor repeats what is stored")
    storage = torch.empty(0, dtype=stored.dtype)
    if storage_bytes:
        file.seek(entry.header_offset)
        header = file.read(_HEADER_BYTES)
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (_HEADER_BYTES - 4, _HEADER_BYTES - 2))
        start = entry.header_offset + _HEADER_BYTES + sum(lengths)
        # A private map: what is written to it reaches no file. It keeps the content of a removed file alive.
        content = np.memmap(path, np.uint8, mode="c", offset=start, shape=(storage_bytes,))
        storage = torch.from_numpy(content).view(stored.dtype)
    return storage.as_strided(stored.shape, stored.stride, stored.offset)
