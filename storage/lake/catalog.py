"""DuckDB over the lake: views of its Parquet files, in memory for the program and as a file for other tools.

Nothing is copied and no file is locked: a view reads the files that exist at the moment of the query.

A remote lake is read through fsspec with its credentials, without any DuckDB extension. The views in `catalog.duckdb` then
hold remote addresses (`s3://...`). To open that file from Python, call
`connection.register_filesystem(fsspec.filesystem("s3"))`; in DuckDB's shell use its own extension (`load httpfs` and a
secret, for S3).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dreamshard.files import atomic
from storage.filesystem import AnyPath, list_files
from storage.lake import derived_views, schemas
from storage.settings import Settings

VIEWS = (
    "versions",
    "tables",
    "table_costs",
    "tasks",
    "cost_samples",
    "device_costs",
    "shard_costs",
    "exchange_samples",
    "placements",
    "evaluations",
    "evaluated_devices",
)

MEMORY_GB = 2.0
"""GiB that a query may use."""

_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # names of views never mean variables of this program
}
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+\"?(\w+)\"?\s*;?\s*", re.IGNORECASE)


def connect(settings: Settings, memory_gb: float = MEMORY_GB) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views, which the caller closes; a view without files is empty.

    Args:
        memory_gb: GiB that a query may use; what does not fit goes to disk.

    Raises:
        ValueError: a file of the lake is damaged; the message names it.
    """
    connection = duckdb.connect(config={**_CONFIG, "memory_limit": f"{int(memory_gb * 2**30)}B"})
    connection.execute("set enable_progress_bar = false")  # shown after two seconds, amid a JSON answer too
    _create_views(connection, settings.lake_root)
    return connection


def write_catalog(settings: Settings) -> None:
    """Replace `catalog.duckdb`, without disturbing readers of the old file; its paths are absolute.

    Call it after every stage: a view written while its dataset had no files stays empty.

    Raises:
        ValueError: a file of the lake is damaged; the message names it.
    """
    with (
        atomic.replacing(settings.catalog_path) as temporary,
        duckdb.connect(temporary, config=_CONFIG) as connection,
    ):
        _create_views(connection, settings.lake_root)


@contextmanager
def answering(settings: Settings, sql: str, memory_gb: float = MEMORY_GB) -> Iterator[duckdb.DuckDBPyRelation]:
    """Yield what a query over the views answers, repeated names of columns numbered; it is computed when it is read.

    Args:
        memory_gb: GiB that it may use.

    Raises:
        ValueError: DuckDB cannot run it, or it asks nothing.
    """
    with connect(settings, memory_gb) as connection:
        try:
            answer: duckdb.DuckDBPyRelation | None = connection.sql(_readable(sql))
            if answer is None:
                raise ValueError(
                    f"{sql!r} asks for no rows; write a query over the views {', '.join(VIEWS)}, for example "
                    '"select * from versions"'
                )
            names = answer.columns
            yield answer if len(set(names)) == len(names) else answer.project("*")  # which numbers them: a, a_1
        except duckdb.OutOfMemoryException as error:
            raise ValueError(
                f"this query needs more than {memory_gb:g} GiB of memory; ask for fewer rows or columns, or raise "
                "--memory-gb"
            ) from error
        except duckdb.Error as error:
            raise ValueError(
                f"DuckDB cannot answer this: {_reason(error)}; the views are {', '.join(VIEWS)}, and `describe "
                "cost_samples` lists the columns of one"
            ) from error


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    """Run one query over the views; returns a dictionary per row.

    Raises:
        ValueError: as `answering`.
    """
    with answering(settings, sql) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]


def _reason(error: duckdb.Error) -> str:
    """What an error says, in one line."""
    return str(error).split("\n\n")[0].strip().replace("\n", " ")


def _readable(sql: str) -> str:
    """`describe VIEW` as a query of its columns: in DuckDB `describe tables` lists all views instead."""
    match = _DESCRIBE.fullmatch(sql)
    if match is None or match[1].lower() not in VIEWS:
        return sql
    return f'select column_name, column_type from (describe select * from "{match[1].lower()}")'


def _create_views(connection: duckdb.DuckDBPyConnection, root: AnyPath) -> None:
    """Create all views over the lake in `root`.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    if not isinstance(root, Path):
        connection.register_filesystem(root.fs)
    try:
        rows = {name: _rows(connection, root, name) for name in _SOURCES}
        for name in VIEWS:
            if name in rows and name != "evaluations":
                connection.execute(f"create view {name} as {rows[name]}")
        evaluations = derived_views.EVALUATIONS.format(rows=rows["evaluations"])
        connection.execute(f"create view evaluations as {evaluations}")
        connection.execute(f"create view evaluated_devices as {derived_views.EVALUATED_DEVICES}")
        connection.execute(f"create view placements as {derived_views.PLACEMENTS}")
        costs = derived_views.TABLE_COSTS.format(estimates=rows["table_estimates"])
        connection.execute(f"create view table_costs as {costs}")
    except duckdb.Error as error:
        raise ValueError(
            f"DuckDB cannot read the lake in {root} ({_reason(error)}); remove the file that it names, and run the stage "
            "that writes it again"
        ) from error


_SOURCES: dict[str, tuple[str, pa.Schema, tuple[str, ...], str]] = {
    "versions": ("versions", schemas.VERSIONS, (), ""),
    "tables": ("tables", schemas.TABLES, ("dataset_version",), f"where created_at > timestamp '{schemas.LONG_AGO}'"),
    "tasks": ("tasks", schemas.TASKS, ("dataset_version", "split"), ""),
    "cost_samples": ("cost_samples", schemas.COST_SAMPLES, ("testbed", "dataset_version"), "where device = 0"),
    "device_costs": ("cost_samples", schemas.DEVICE_COSTS, ("testbed", "dataset_version"), ""),
    "shard_costs": ("shard_costs", schemas.SHARD_COSTS, ("hardware",), ""),
    "exchange_samples": ("exchange_samples", schemas.EXCHANGE_SAMPLES, (), ""),
    "evaluations": ("evaluations", schemas.EVALUATIONS, ("testbed", "dataset_version"), ""),
    "table_estimates": ("table_estimates", schemas.TABLE_ESTIMATES, (), ""),
}
"""Name -> dataset, columns, those that its folders are named by, and condition on its rows.

The row of device 0 carries the whole sample. Datasets that never count as the newest hold tables of reference tasks, which
are nobody's own: they are read by their version only.
"""


def _rows(connection: duckdb.DuckDBPyConnection, root: AnyPath, name: str) -> str:
    """A query of the rows of a dataset's files; of no rows if it has none."""
    dataset, schema, folders, condition = _SOURCES[name]
    if not list_files(root / dataset, "**/*.parquet"):
        kinds = connection.from_arrow(schema.empty_table()).types
        empty = (f'cast(null as {kind}) as "{column}"' for column, kind in zip(schema.names, kinds, strict=True))
        return f"select {', '.join(empty)} where false"
    files = f"{root / dataset}/**/*.parquet".replace("'", "''")
    columns = {column: f'"{column}"' for column in schema.names}
    # Values of folders come from file names, so that DuckDB opens only the files that a condition asks for.
    for depth, column in enumerate(reversed(folders), start=2):
        columns[column] = f"url_decode(split_part(filename, '/', -{depth}))"
    selected = ", ".join(f'{value} as "{column}"' for column, value in columns.items())
    source = f"read_parquet('{files}', hive_partitioning = false, union_by_name = true, filename = true)"
    return f"select {selected} from {source} {condition}"
