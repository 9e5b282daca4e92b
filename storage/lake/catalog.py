"""DuckDB over the lake: seven views of its Parquet files, in memory for the program and as a file for other tools.

Nothing is copied and no file is locked: a view reads what the lake holds at the moment of the query.

A lake that lies elsewhere is read through fsspec, with its own credentials; no extension of DuckDB is needed. The views
in `catalog.duckdb` then hold its addresses (`s3://...`), so that whoever opens that file needs a way to read them: from
Python `connection.register_filesystem(fsspec.filesystem("s3"))`, in DuckDB's shell its own extension (`load httpfs` and
a secret, for S3) if it has one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dreamshard.files import atomic
from storage.filesystem import failures, files
from storage.lake import schemas
from storage.settings import Settings

VIEWS = ("tables", "tasks", "cost_samples", "device_costs", "shard_costs", "placements", "evaluations")

# nothing is downloaded, ever
_QUIET: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def connect(settings: Settings) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the seven views; close it when done.

    A view whose files do not exist yet is empty and has its columns.
    """
    connection = duckdb.connect(config=_QUIET)
    _create_views(connection, settings)
    return connection


def write_catalog(settings: Settings) -> None:
    """Replace `catalog.duckdb` by one with the views as they are now; readers of the old one are not disturbed.

    Paths in it are absolute, so it opens from any folder. Call it after a stage that wrote to a dataset for the first
    time: a view written while there were no files stays empty.
    """
    with atomic.replacing(settings.catalog_path) as temporary, duckdb.connect(temporary, config=_QUIET) as connection:
        _create_views(connection, settings)


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    """The answer to one query over the views: a dictionary per row.

    Raises:
        ValueError: DuckDB cannot answer; the message names the views.
    """
    with connect(settings) as connection:
        try:
            answer = connection.sql(sql)
            columns: Sequence[str] = answer.columns if answer is not None else []
            rows = answer.fetchall() if answer is not None else []
        except failures(duckdb.Error) as error:
            reason = str(error).split("\n\n")[0].strip().replace("\n", " ")
            raise ValueError(
                f"DuckDB cannot answer this: {reason}; the views are {', '.join(VIEWS)}, and `describe cost_samples` "
                "lists the columns of one"
            ) from error
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _create_views(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    root = settings.lake_root
    if not isinstance(root, Path):
        connection.register_filesystem(root.fs)
    for name, (dataset, schema, rest) in _SOURCES.items():
        folder = root / dataset
        if any(folder.rglob("*.parquet")) if isinstance(folder, Path) else files(folder, "**/*.parquet"):
            columns = ", ".join(f'"{column}"' for column in schema.names)
            found = f"{folder}/**/*.parquet".replace("'", "''")
            source = (
                f"read_parquet('{found}', hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
            )
            once = _ONCE if dataset == "cost_samples" and not isinstance(root, Path) else ""
            connection.execute(f"create view {name} as select {columns} from {source} {rest} {once}")
        else:
            connection.execute(f"create view {name} as {_empty(connection, schema)}")
    connection.execute(f"create view placements as {_PLACEMENTS}")


_ONCE = """
    qualify row_number() over (partition by testbed, dataset_version, sample_id, device order by created_at) = 1
"""
"""Hosts that do the same run at the same time have no lock in common, and may keep one sample in two files."""

_SOURCES: dict[str, tuple[str, pa.Schema, str]] = {
    "tables": ("tables", schemas.TABLES, ""),
    "tasks": ("tasks", schemas.TASKS, ""),
    "cost_samples": ("cost_samples", schemas.COST_SAMPLES, "where device = 0"),
    "device_costs": ("cost_samples", schemas.DEVICE_COSTS, ""),
    "shard_costs": ("shard_costs", schemas.SHARD_COSTS, ""),
    "evaluations": ("evaluations", schemas.EVALUATIONS, ""),
}
"""View -> dataset, columns, and which of its rows. A sample's own row is the one of its device 0."""

_PLACEMENTS = """
    select 'cost_sample' as origin, sample_id as origin_id, run_key, dataset_version, testbed, hardware, task,
        cast(null as varchar) as placer, num_devices, unnest(table_names) as table_name, unnest(placement) as device
    from cost_samples
    union all
    select 'evaluation', evaluation_id, run_key, dataset_version, testbed, hardware, task, placer, num_devices,
        unnest(table_names), unnest(placement)
    from evaluations
"""


def _empty(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> str:
    """A query without rows whose columns are those of `schema`."""
    kinds = connection.from_arrow(schema.empty_table()).types
    columns = (f'cast(null as {kind}) as "{name}"' for name, kind in zip(schema.names, kinds, strict=True))
    return f"select {', '.join(columns)} where false"
