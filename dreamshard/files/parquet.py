"""Parquet files that others wrote, within bounds, and one sentence for those that cannot be read.

What a file says of itself is checked before anything of that size is made: a kilobyte can claim any number of values, and
name a long text a million times.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dreamshard.files.bounds import FREE_LOOKUPS, LOOKUPS_PER_BYTE, MOST_LOOKUPS, MOST_TEXT_BYTES, MOST_VALUES
from dreamshard.files.foreign import InputError, reading
from dreamshard.files.parquet_pages import pages

_MOST_COLUMNS = 10_000
_MOST_ROW_GROUPS = 100_000
_VALUES_PER_BYTE = 20_000  # of a file: writers start a page of some ten bytes at least every 20,000 rows
_STRING_BYTES, _CONTAINER_ITEMS = 2**26, 2**20  # of a footer
_MOST_UNPACKED_BYTES = 2 * MOST_TEXT_BYTES  # of the pages of a list, and of the texts in it
_BYTES_PER_LOOKUP = 16  # of a page: its index, and where it is in its list


@contextmanager
def parquet_errors(source: object, advice: str) -> Iterator[None]:
    """Raise whatever a damaged file makes Arrow raise in the block as one `InputError`.

    Args:
        source: the file, for the message.
        advice: why it matters, and what to do.
    """
    with reading(source, "cannot be read as Parquet", advice):
        yield


def read_columns(
    file: str | Path, columns: Sequence[str] | None, advice: str, *, most_rows: int, lists: bool = False
) -> pa.Table:
    """Columns of a small Parquet file of numbers and texts, or all of them; those that it lacks are left out.

    Args:
        file: to read.
        columns: top-level columns; others are not read. None for all.
        advice: as for `parquet_errors`.
        most_rows: that the file may have.
        lists: whether a column may hold lists of numbers or texts.

    Raises:
        ValueError: it is no Parquet file, is damaged, has too many rows or values, or columns of other types.
    """
    with parquet_errors(file, advice):
        with _opened(file, advice, most_rows) as opened:
            wanted = _wanted(opened, columns)
            _check_types(opened.schema_arrow, wanted, file, advice, lists=lists)
            texts = [each.path for each in map(opened.schema.column, range(len(opened.schema))) if _is_text(each)]
        _check_pages(file, wanted, MOST_VALUES, _MOST_UNPACKED_BYTES, advice)
        with _opened(file, advice, most_rows, texts=texts) as opened:
            # Group by group: Arrow cannot read lists of texts with several dictionaries at once.
            groups = [opened.read_row_group(number, wanted) for number in range(opened.num_row_groups)]
            return _with_texts(pa.concat_tables(groups) if groups else opened.read(wanted), file, advice)


def read_lists(file: str | Path, advice: str) -> pa.Table:
    """All columns of a Parquet file of recorded lookups; what is not compressed stays on disk until it is used.

    Raises:
        ValueError: it is no Parquet file, is damaged, or claims more lookups than its size allows.
    """
    with parquet_errors(file, advice), _opened(file, advice, MOST_LOOKUPS, memory_map=True) as opened:
        _check_types(opened.schema_arrow, opened.schema_arrow.names, file, advice, lists=True)
        most = min(MOST_LOOKUPS, FREE_LOOKUPS + LOOKUPS_PER_BYTE * Path(file).stat().st_size)
        _check_pages(file, None, most, _MOST_UNPACKED_BYTES + _BYTES_PER_LOOKUP * most, advice)
        return opened.read()


def num_rows(file: str | Path, advice: str) -> int:
    """Rows of a Parquet file; raises like `read_columns`."""
    with parquet_errors(file, advice), _opened(file, advice, MOST_LOOKUPS) as opened:
        return int(opened.metadata.num_rows)


def _opened(
    file: str | Path, advice: str, most_rows: int, *, memory_map: bool = False, texts: Sequence[str] = ()
) -> pq.ParquetFile:
    """The file, its footer checked; `texts` are columns of which each text is made once."""
    opened = pq.ParquetFile(
        str(file),
        memory_map=memory_map,
        read_dictionary=list(texts),
        thrift_string_size_limit=_STRING_BYTES,
        thrift_container_size_limit=_CONTAINER_ITEMS,
    )
    about, size = opened.metadata, Path(file).stat().st_size
    for count, most, what in (
        (about.num_rows, most_rows, "rows"),
        (about.num_columns, _MOST_COLUMNS, "columns"),
        (about.num_row_groups, _MOST_ROW_GROUPS, "row groups"),
    ):
        if not 0 <= count <= most:
            raise InputError(f"{file} claims {count:,} {what}, where at most {most:,} are read, {advice}")
    # Not `about.row_group(0).column(0)`: Arrow ends the process where the statistics there are damaged.
    claimed = about.num_rows * about.num_columns
    if claimed > _VALUES_PER_BYTE * size:
        raise InputError(
            f"{file} claims {claimed:,} values, which {size:,} bytes cannot hold, so it is damaged, {advice}"
        )
    return opened


def _wanted(opened: pq.ParquetFile, columns: Sequence[str] | None) -> list[str]:
    return [name for name in opened.schema_arrow.names if columns is None or name in columns]


def _is_text(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "STRING")


def _check_types(schema: pa.Schema, names: Sequence[str], file: object, advice: str, *, lists: bool) -> None:
    """Refuse columns of types other than those that are known to take little."""
    for name in names:
        for field in (schema.field(at) for at in schema.get_all_field_indices(name)):
            inner = field.type.value_type if lists and _is_list(field.type) else field.type
            if not _is_plain(inner):
                kinds = "numbers, texts or lists of these" if lists else "numbers or texts"
                raise InputError(
                    f"{file} has the column {name[:80]!r} of type {str(field.type)[:80]}, where {kinds} are read, {advice}"
                )


def _is_plain(kind: pa.DataType) -> bool:
    is_type = pa.types
    if is_type.is_dictionary(kind):
        kind = kind.value_type
    texts = is_type.is_string(kind) or is_type.is_large_string(kind) or is_type.is_string_view(kind)
    numbers = (
        is_type.is_integer(kind) or is_type.is_floating(kind) or is_type.is_boolean(kind) or is_type.is_decimal(kind)
    )
    return bool(texts or numbers or is_type.is_timestamp(kind) or is_type.is_null(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _check_pages(file: str | Path, names: Sequence[str] | None, most: int, most_bytes: int, advice: str) -> None:
    found = pages(Path(file), names)
    for count, limit, what in (
        (found.values, most, "values"),
        (found.unpacked_bytes, most_bytes, "bytes when unpacked"),
    ):
        if count > limit:
            raise InputError(f"{file} claims {count:,} {what}, where at most {limit:,} are read, {advice}")


def _with_texts(table: pa.Table, file: object, advice: str) -> pa.Table:
    """The table with its texts in full, none of them repeated until it fills memory."""
    total = sum(_text_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if total > _MOST_UNPACKED_BYTES:
        raise InputError(f"{file} repeats texts to {total:,} bytes, where {_MOST_UNPACKED_BYTES:,} are read, {advice}")
    return table.cast(pa.schema([field.with_type(_in_full(field.type)) for field in table.schema]))


def _text_bytes(array: pa.Array) -> int:
    values = array.values if _is_list(array.type) else array
    if not pa.types.is_dictionary(values.type) or not _is_string(values.type.value_type):
        return 0
    return int(pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0)


def _in_full(kind: pa.DataType) -> pa.DataType:
    if _is_list(kind):
        inner = kind.value_field.with_type(_in_full(kind.value_type))
        return pa.list_(inner) if pa.types.is_list(kind) else pa.large_list(inner)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
