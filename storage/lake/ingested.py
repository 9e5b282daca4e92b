"""Tables ingested before, so that ingesting a source again processes only its new and changed tables.

    ingested/<content>.parquet      one row per table: its fingerprint and its statistics
    sources/<key>.parquet           one row per table of a source at one time: name and fingerprint

A fingerprint identifies everything that a table's lookups are made from (`dreamshard.workloads.source.Workload`), so the
same fingerprint always means the same lookups file. A table whose lookups file was removed is not known any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dreamshard.tables import Tables
from storage.filesystem import list_files
from storage.lake import rows as records
from storage.lake import schemas
from storage.lake.lake import Lake
from storage.lake.parquet_files import content_id, read_parquet, read_parquet_files, write_parquet, write_rows


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """The result of ingesting a source.

    Attributes:
        dataset: version of the dataset.
        new: number of new or changed tables.
        reused: number of tables whose lookups and statistics were in the lake.
        notes: what of the source was not used, and what was assumed.
    """

    dataset: str
    new: int
    reused: int
    notes: tuple[str, ...] = ()


def keep_ingested(lake: Lake, fingerprints: Sequence[str], tables: Tables) -> None:
    """Remember the statistics of tables whose lookups are in the lake, each under its fingerprint."""
    files = [records.lookups_file(tables.select([t])) for t in range(len(tables))]
    path = lake.root / "ingested" / f"{content_id([*fingerprints, files])}.parquet"
    if not path.exists():
        rows = records.tables_to_rows(tables, "", "", files)
        rows = rows.append_column("fingerprint", pa.array(fingerprints, pa.string()))
        write_parquet(path, rows.select(schemas.INGESTED.names).cast(schemas.INGESTED))


def known_tables(lake: Lake, fingerprints: Sequence[str]) -> dict[str, Tables]:
    """The one-table `Tables` of each fingerprint that was ingested and whose lookups file still exists.

    Args:
        fingerprints: those of one source, whose tables have distinct names.

    Raises:
        ValueError: a file cannot be read.
    """
    existing = {f"lookups/{path.name}" for path in list_files(lake.root / "lookups", "*.parquet")}
    wanted = set(fingerprints)
    rows: dict[str, pa.Table] = {}
    for table in read_parquet_files(list_files(lake.root / "ingested", "*.parquet")):
        for i, row in enumerate(table.select(["fingerprint", "lookups_file"]).to_pylist()):
            if row["fingerprint"] in wanted and row["lookups_file"] in existing:
                rows[row["fingerprint"]] = table.slice(i, 1)
    if not rows:
        return {}
    combined = pa.concat_tables(rows.values()).append_column("position", pa.array(range(len(rows))))
    tables = records.tables_from_rows(combined)
    return {fingerprint: tables.select([t]) for t, fingerprint in enumerate(rows)}


def keep_source(lake: Lake, key: str, names: Sequence[str], fingerprints: Sequence[str]) -> None:
    """Remember the tables of a source in the state that `key` identifies."""
    path = lake.root / "sources" / f"{key}.parquet"
    if not path.exists():
        pairs, now = zip(names, fingerprints, strict=True), records.now()
        rows = [{"name": name, "fingerprint": fingerprint, "created_at": now} for name, fingerprint in pairs]
        write_rows(path, rows, schemas.SOURCES)


def read_source(lake: Lake, key: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names and fingerprints of the tables kept under `key`, or None.

    Raises:
        ValueError: the file cannot be read.
    """
    path = lake.root / "sources" / f"{key}.parquet"
    if not path.exists():
        return None
    rows = read_parquet(path)
    return tuple(rows.column("name").to_pylist()), tuple(rows.column("fingerprint").to_pylist())
