"""DuckDB over the lake: views of its Parquet files, in memory for the program and as a file for other tools.

Nothing is copied and no file is locked: a view reads the files that exist at the moment of the query.

A remote lake is read through fsspec with its credentials, without any DuckDB extension. The views in `catalog.duckdb` then
hold remote addresses (`s3://...`). To open that file from Python, call
`connection.register_filesystem(fsspec.filesystem("s3"))`; in DuckDB's shell use its own extension (`load httpfs` and a
secret, for S3).
"""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dreamshard.files import atomic
from storage.filesystem import failures, list_files
from storage.lake import schemas
from storage.settings import Settings

VIEWS = (
    "tables",
    "tasks",
    "cost_samples",
    "device_costs",
    "shard_costs",
    "exchange_samples",
    "placements",
    "evaluations",
)

_NO_DOWNLOADS: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


def connect(settings: Settings) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views, which the caller closes; a view without files is empty."""
    connection = duckdb.connect(config=_NO_DOWNLOADS)
    _create_views(connection, settings)
    return connection


def write_catalog(settings: Settings) -> None:
    """Replace `catalog.duckdb`, without disturbing readers of the old file; its paths are absolute.

    Call it after every stage: a view written while its dataset had no files stays empty.
    """
    target = settings.catalog_path
    with atomic.replacing(target) as temporary, duckdb.connect(temporary, config=_NO_DOWNLOADS) as connection:
        _create_views(connection, settings)


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    """Run one query over the views; returns a dictionary per row.

    Raises:
        ValueError: DuckDB cannot run it; the message names the views.
    """
    with connect(settings) as connection:
        try:
            answer = connection.sql(sql)
            return [] if answer is None else [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]
        except failures(duckdb.Error) as error:
            reason = str(error).split("\n\n")[0].strip().replace("\n", " ")
            raise ValueError(
                f"DuckDB cannot answer this: {reason}; the views are {', '.join(VIEWS)}, and `describe cost_samples` "
                "lists the columns of one"
            ) from error


def _create_views(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    root = settings.lake_root
    if not isinstance(root, Path):
        connection.register_filesystem(root.fs)
    for name, (dataset, schema, condition) in _SOURCES.items():
        folder = root / dataset
        if not (any(folder.rglob("*.parquet")) if isinstance(folder, Path) else list_files(folder, "**/*.parquet")):
            connection.execute(f"create view {name} as {_empty(connection, schema)}")
            continue
        files = f"{folder}/**/*.parquet".replace("'", "''")
        source = f"read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
        once = _DISTINCT if dataset == "cost_samples" and not isinstance(root, Path) else ""
        rows = f"from {source} {condition} {once}"
        columns = ", ".join(f'"{column}"' for column in schema.names)
        try:
            connection.execute(f"create view {name} as select {columns} {rows}")
        except duckdb.BinderException:
            connection.execute(f"create view {name} as select {_known_columns(connection, source, schema)} {rows}")
    connection.execute(f"create view placements as {_PLACEMENTS}")


_DISTINCT = """
    qualify row_number() over (partition by testbed, dataset_version, sample_id, device order by created_at) = 1
"""
"""Hosts that do the same run at the same time share no lock, and may write one sample to two files."""

_SOURCES: dict[str, tuple[str, pa.Schema, str]] = {
    "tables": ("tables", schemas.TABLES, ""),
    "tasks": ("tasks", schemas.TASKS, ""),
    "cost_samples": ("cost_samples", schemas.COST_SAMPLES, "where device = 0"),
    "device_costs": ("cost_samples", schemas.DEVICE_COSTS, ""),
    "shard_costs": ("shard_costs", schemas.SHARD_COSTS, ""),
    "exchange_samples": ("exchange_samples", schemas.EXCHANGE_SAMPLES, ""),
    "evaluations": ("evaluations", schemas.EVALUATIONS, ""),
}
"""View -> dataset, columns, and condition on its rows. The row of device 0 carries the whole sample."""

_PLACEMENTS = """
    select 'cost_sample' as origin, sample_id as origin_id, run_key, dataset_version, testbed, hardware, task,
        cast(null as varchar) as placer, num_devices, unnest(table_names) as table_name, unnest(placement) as device
    from cost_samples
    union all
    select 'evaluation', evaluation_id, run_key, dataset_version, testbed, hardware, task, placer, num_devices,
        unnest(table_names), unnest(placement)
    from evaluations
"""


def _known_columns(connection: duckdb.DuckDBPyConnection, source: str, schema: pa.Schema) -> str:
    """The columns of `schema`, null where they are newer than all files."""
    known = {row[0] for row in connection.execute(f"describe select * from {source}").fetchall()}
    kinds = connection.from_arrow(schema.empty_table()).types
    return ", ".join(
        f'"{name}"' if name in known else f'cast(null as {kind}) as "{name}"'
        for name, kind in zip(schema.names, kinds, strict=True)
    )


def _empty(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> str:
    """A query without rows, with the columns of `schema`."""
    kinds = connection.from_arrow(schema.empty_table()).types
    columns = (f'cast(null as {kind}) as "{name}"' for name, kind in zip(schema.names, kinds, strict=True))
    return f"select {', '.join(columns)} where false"
