"""Tables derived from those of a dataset as if they had drifted: `drifted/<dataset version>/<content>.parquet`.

They belong to the dataset's pool, in which tasks name them, but not to the dataset, whose version is the user's tables.
"""

from collections.abc import Sequence

import pyarrow as pa

from dreamshard.tables import Tables
from storage.filesystem import AnyPath, list_files
from storage.lake import rows
from storage.lake.parquet_files import content_id, hive_folder, read_parquet_files, write_parquet

FOLDER = "drifted"


def pool_rows(root: AnyPath, version: str, dataset: pa.Table) -> pa.Table:
    """The rows of a dataset, then those of its drifted tables, each name once.

    Args:
        root: of the lake.
        dataset: rows of dataset `version`.
    """
    files = read_parquet_files(list_files(_folder(root, version), "*.parquet"))
    combined = pa.concat_tables([dataset.sort_by("position"), *files])
    first = {name: i for i, name in reversed(list(enumerate(combined.column("name").to_pylist())))}
    kept = combined.take(sorted(first.values()))
    position = kept.schema.get_field_index("position")
    return kept.set_column(position, kept.schema.field(position), pa.array(range(len(kept)), pa.int32()))


def write_drifted(root: AnyPath, tables: Tables, version: str) -> None:
    """Add drifted tables, whose lookups are in the lake, to the pool of dataset `version`."""
    files = [rows.lookups_file(tables.select([t])) for t in range(len(tables))]
    path = _folder(root, version) / f"{content_id([list(tables.names), files])}.parquet"
    if not path.exists():
        write_parquet(path, rows.tables_to_rows(tables, version, "", files))


def with_lookups(root: AnyPath, pool: pa.Table, names: Sequence[str]) -> set[str]:
    """Those of `names` that are in the pool and whose lookups are in the lake."""
    files = dict(zip(pool.column("name").to_pylist(), pool.column("lookups_file").to_pylist(), strict=True))
    existing = {f"lookups/{path.name}" for path in list_files(root / "lookups", "*.parquet")}
    return {name for name in names if files.get(name) in existing}


def _folder(root: AnyPath, version: str) -> AnyPath:
    return hive_folder(root / FOLDER, dataset_version=version)
