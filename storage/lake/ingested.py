"""Tables ingested before, so that ingesting a source again processes only its new and changed tables.

    sources/<key>.parquet             one row per table of a source in one state: its fingerprint and its statistics
    sources/_<source>.json            the key of the state that was ingested last
    ingested/<key>/<content>.parquet  the same rows of an unfinished ingestion, which continues from them

The key identifies a source's content, its state. A fingerprint identifies everything that a table's lookups are made from
(`dreamshard.workloads.source.Workload`), so the same fingerprint always means the same statistics and lookups file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dreamshard.files import json_digest
from dreamshard.tables import Tables
from dreamshard.workloads import dataset_version
from storage.filesystem import AnyPath, list_files, read_json, remove, write_json
from storage.lake.lake import Lake
from storage.lake.parquet_files import content_id, read_parquet, read_parquet_files, write_parquet
from storage.lake.rows import tables_from_rows, tables_to_rows


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """The result of ingesting a source.

    Attributes:
        tables: all of the source's, in its order.
        new: number of new or changed tables.
        reused: number of tables whose lookups and statistics were in the lake.
        notes: unused parts of the source, and assumptions.
    """

    tables: Tables
    new: int
    reused: int
    notes: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        """Version of the dataset of these tables."""
        return dataset_version(self.tables)


def keep_part(lake: Lake, key: str, fingerprints: Sequence[str], tables: Tables) -> None:
    """Remember some tables of a source in a state, whose lookups are in the lake."""
    write_parquet(
        lake.root / "ingested" / key / f"{content_id(list(fingerprints))}.parquet", _rows(fingerprints, tables)
    )


def keep_state(lake: Lake, source: str, key: str, fingerprints: Sequence[str], tables: Tables) -> None:
    """Remember all tables of a source in a state, instead of the parts of it."""
    if not _state(lake, key).exists():
        write_parquet(_state(lake, key), _rows(fingerprints, tables))
    if _newest_key(lake, source) != [key]:
        write_json(_newest(lake, source), {"key": key})
    remove(list_files(lake.root / "ingested" / key, "*.parquet"))


def read_fingerprints(lake: Lake, key: str) -> list[str] | None:
    """Fingerprints of the tables of a state in the source's order, or None if it was never ingested."""
    if not _state(lake, key).exists():
        return None
    fingerprints: list[str] = read_parquet(_state(lake, key)).column("fingerprint").to_pylist()
    return fingerprints


def known_tables(lake: Lake, source: str, key: str, fingerprints: Sequence[str], *, lookups: bool) -> dict[str, Tables]:
    """The one-table `Tables` of each fingerprint that was ingested.

    Known are the tables of the state itself, of its unfinished ingestion, and of the state that was ingested last.

    Args:
        source: where the tables come from.
        key: of the source's present state.
        lookups: leave out tables whose lookups file does not exist.
    """
    parts = read_parquet_files(list_files(lake.root / "ingested" / key, "*.parquet"))
    keys = [key, *_newest_key(lake, source)]
    # after the parts, which another process may just have replaced by the state
    states = read_parquet_files([path for path in (_state(lake, key) for key in dict.fromkeys(keys)) if path.exists()])
    if not (parts or states):
        return {}
    rows = pa.concat_tables([*states, *parts])
    files, wanted = rows.column("lookups_file").to_pylist(), set(fingerprints)
    existing = {f"lookups/{path.name}" for path in list_files(lake.root / "lookups", "*.parquet")}
    position = {
        fingerprint: i
        for i, fingerprint in enumerate(rows.column("fingerprint").to_pylist())
        if fingerprint in wanted and (files[i] in existing or not lookups)
    }
    tables = tables_from_rows(rows.take(pa.array(position.values(), pa.int64())))
    return {fingerprint: tables.select([t]) for t, fingerprint in enumerate(position)}


def _rows(fingerprints: Sequence[str], tables: Tables) -> pa.Table:
    return tables_to_rows(tables).append_column("fingerprint", pa.array(fingerprints, pa.string()))


def _state(lake: Lake, key: str) -> AnyPath:
    return lake.root / "sources" / f"{key}.parquet"


def _newest_key(lake: Lake, source: str) -> list[str]:
    """The key of the state that was ingested last, if any."""
    try:
        return [read_json(_newest(lake, source))["key"]]
    except FileNotFoundError:
        return []


def _newest(lake: Lake, source: str) -> AnyPath:
    return lake.root / "sources" / f"_{json_digest(source)}.json"  # other readers of the folder pass over it
