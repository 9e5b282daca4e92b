"""What was ingested before, so that a source costs only its new and changed tables.

    ingested/<content>.parquet      one row per table: its fingerprint, and what its lookups said
    sources/<key>.parquet           one row per table of a source as it was at one time: name and fingerprint

A fingerprint stands for everything that a table's lookups come from (`dreamshard.workloads.source.Workload`), so one that
is known names the same lookups file for good. A table whose lookups file is gone is no longer known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dreamshard.tables import Tables
from storage.filesystem import files
from storage.lake import rows as records
from storage.lake import schemas
from storage.lake.lake import Lake, lookups_file
from storage.lake.parquet_files import content_id, read, read_all, write

_WHICH = ("fingerprint", "lookups_file")


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """What ingesting a source came to.

    Attributes:
        dataset: version.
        new: tables that were new or changed.
        reused: tables whose lookups and statistics were in the lake.
    """

    dataset: str
    new: int
    reused: int


def keep_ingested(lake: Lake, fingerprints: Sequence[str], tables: Tables) -> None:
    """Keep what tables came to whose lookups are in the lake.

    Args:
        fingerprints: one per table.
        tables: with their statistics.
    """
    found = records.tables_to_rows(tables, "", "", [lookups_file(tables.select([t])) for t in range(len(tables))])
    found = found.append_column("fingerprint", pa.array(fingerprints, pa.string()))
    path = lake.root / "ingested" / f"{content_id([*fingerprints, found.column('lookups_file').to_pylist()])}.parquet"
    if not path.exists():
        write(path, found.select(schemas.INGESTED.names).cast(schemas.INGESTED))


def known_tables(lake: Lake, fingerprints: Sequence[str]) -> dict[str, Tables]:
    """Those of `fingerprints` under which a table was ingested whose lookups are still there; one table for each.

    Args:
        lake: of both.
        fingerprints: of one source: no two of its tables have one name.

    Raises:
        ValueError: a file cannot be read.
    """
    there = {f"lookups/{path.name}" for path in files(lake.root / "lookups", "*.parquet")}
    wanted = set(fingerprints)
    rows: dict[str, pa.Table] = {}
    for found in read_all(files(lake.root / "ingested", "*.parquet")):
        for row, (its, file) in enumerate(zip(*(found.column(name).to_pylist() for name in _WHICH), strict=True)):
            if its in wanted and file in there:
                rows[its] = found.slice(row, 1)
    if not rows:
        return {}
    together = pa.concat_tables(rows.values()).append_column("position", pa.array(range(len(rows))))
    tables = records.tables_from_rows(together)
    return {fingerprint: tables.select([t]) for t, fingerprint in enumerate(rows)}


def keep_source(lake: Lake, key: str, names: Sequence[str], fingerprints: Sequence[str]) -> None:
    """Keep which tables a source has while its mark is what `key` was made of."""
    path = lake.root / "sources" / f"{key}.parquet"
    if not path.exists():
        stamps = [records.now()] * len(names)
        write(path, pa.Table.from_arrays([list(names), list(fingerprints), stamps], schema=schemas.SOURCES))


def read_source(lake: Lake, key: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names and fingerprints of a source's tables as they were kept under `key`, or None.

    Raises:
        ValueError: the file cannot be read.
    """
    path = lake.root / "sources" / f"{key}.parquet"
    if not path.exists():
        return None
    found = read(path)
    return tuple(found.column("name").to_pylist()), tuple(found.column("fingerprint").to_pylist())
