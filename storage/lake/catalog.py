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

from dreamshard.files import atomic
from storage.filesystem import AnyPath, list_files
from storage.lake import schemas
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
_HIVE = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
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
    """Create all views over the lake in `root`: of its files, and of an empty table with the columns of each dataset.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    if not isinstance(root, Path):
        connection.register_filesystem(root.fs)
    try:
        connection.execute("create schema empty; create schema lake")
        for name, schema in schemas.DATASETS.items():
            connection.from_arrow(schema.empty_table()).create(f"empty.{name}")
            rows = f"from empty.{name}"
            if list_files(root / name, "**/*.parquet"):
                files = f"{root / name}/**/*.parquet".replace("'", "''")
                rows += f" union all by name from read_parquet('{files}', {_HIVE})"
            connection.execute(f"create view lake.{name} as {rows}")
        connection.execute(Path(__file__).with_name("views.sql").read_text(encoding="utf-8"))
    except duckdb.Error as error:
        raise ValueError(
            f"DuckDB cannot read the lake in {root} ({_reason(error)}); remove the file that it names, and run the stage "
            "that writes it again"
        ) from error
