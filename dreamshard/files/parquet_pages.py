"""What reading columns of a Parquet file would take, by the headers of their pages, before Arrow makes anything of it.

A page says how large it becomes, and a kilobyte may claim gigabytes. Headers are Thrift's compact protocol; fields are known
by number (github.com/apache/parquet-format, parquet.thrift).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
_FOOTER_BYTES = 2**21  # that of a list of tables has some thousand
_HEADER_BYTES = 2**16  # of a page; it may hold the smallest and largest value
_MOST_PAGES = 200_000
_MOST_LEVELS = 20  # of structures in structures; a footer has six
_ROW_GROUPS, _CHUNKS, _OF_CHUNK, _PATH, _TOTAL, _DATA_AT, _DICTIONARY_AT = 4, 1, 3, 3, 7, 9, 11
_UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
_VALUES = 1
_ENCODING = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}
_ENCODINGS = {0: "plain", 2: "dictionary", 3: "runs", 4: "bits", 5: "deltas", 6: "lengths", 8: "dictionary", 9: "split"}
_SHARED_PREFIXES = 7  # DELTA_BYTE_ARRAY


@dataclass(frozen=True)
class Pages:
    """Of some columns: values, of which lists have several per row, and bytes of their pages when unpacked."""

    values: int
    unpacked_bytes: int


def pages(path: Path, columns: Collection[str] | None) -> Pages:
    """What the pages of top-level columns, or of all, claim.

    Raises:
        TypeError: a header is damaged, an encoding is unknown or may make much of little, or there are too many pages.
        Exception: the same, of what a header lacks.
    """
    values = unpacked = number = 0
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for start, end in _extents(file, size, columns):
            at = start
            while at < end:
                file.seek(at)
                header, length = _structure(file.read(_HEADER_BYTES), 0)
                number += 1
                if number > _MOST_PAGES:
                    raise TypeError(f"it has more than {_MOST_PAGES:,} pages")
                if header[_UNCOMPRESSED] < 0 or header[_COMPRESSED] < 0:
                    raise TypeError("a page has a negative size")
                unpacked += header[_UNCOMPRESSED]
                values += _values(header)
                at += length + header[_COMPRESSED]
    return Pages(values, unpacked)


def _values(header: dict[int, Any]) -> int:
    """Values of a page, whose encoding takes memory in proportion to them and to its bytes."""
    count = 0
    for kind, encoding in _ENCODING.items():
        if kind in header:
            if header[kind][encoding] == _SHARED_PREFIXES:
                raise TypeError(
                    "its texts are encoded as DELTA_BYTE_ARRAY, by which a few bytes make any amount of text"
                )
            if header[kind][encoding] not in _ENCODINGS or header[kind][_VALUES] < 0:
                raise TypeError("a page has an unknown encoding or a negative number of values")
            count += header[kind][_VALUES]
    return count


def _extents(file: BinaryIO, size: int, columns: Collection[str] | None) -> Iterator[tuple[int, int]]:
    """Where the pages of each chunk of the columns begin and end."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 8:
        raise TypeError("it has no footer")
    if length > _FOOTER_BYTES:
        raise TypeError(f"its footer has {length:,} bytes, more than {_FOOTER_BYTES:,}")
    file.seek(size - 8 - length)
    footer, _ = _structure(file.read(length), 0)
    for group in footer[_ROW_GROUPS]:
        for chunk in group[_CHUNKS]:
            about = chunk[_OF_CHUNK]
            if columns is None or about[_PATH][0].decode() in columns:
                first = about.get(_DICTIONARY_AT, 0)
                start = first if 0 < first < about[_DATA_AT] else about[_DATA_AT]  # as Arrow decides
                if not 0 <= start <= start + about[_TOTAL] <= size:
                    raise TypeError("a column is outside the file")
                yield start, start + about[_TOTAL]


def _structure(data: bytes, at: int, level: int = 0) -> tuple[dict[int, Any], int]:
    """Fields by number, and where the structure ends."""
    if level > _MOST_LEVELS:
        raise TypeError("a header nests too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at] & 0x0F:
        step, at = data[at] >> 4, at + 1
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in (1, 2):
            fields[number] = kind == 1
        else:
            fields[number], at = _value(data, at, kind, level)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, level: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 3:
        return data[at], at + 1
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _count(data, at)
        return data[at : at + length], at + length
    if kind in (9, 10):
        return _list(data, at, level)
    if kind == 12:
        return _structure(data, at, level + 1)
    raise TypeError("a header has a field of a kind that Parquet does not use")


def _list(data: bytes, at: int, level: int) -> tuple[list[Any], int]:
    count, kind, at = data[at] >> 4, data[at] & 0x0F, at + 1
    if count == 15:
        count, at = _count(data, at)
    if count > len(data) - at or level > _MOST_LEVELS:
        raise TypeError("a header has a list that is longer than itself, or nests too deeply")
    values = []
    for _ in range(count):
        value, at = (data[at], at + 1) if kind in (1, 2) else _value(data, at, kind, level + 1)
        values.append(value)
    return values, at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at
    raise TypeError("a header has a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """One whose sign is its last bit."""
    value, at = _count(data, at)
    return (value >> 1) ^ -(value & 1), at
