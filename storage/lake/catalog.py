"""DuckDB over the lake: views of its Parquet files, in memory for the program and as a file for other tools.

Nothing is copied and no file is locked: a view reads the files that exist at the moment of the query.

A remote lake is read through fsspec with its credentials, without any DuckDB extension. The views in `catalog.duckdb` then
hold remote addresses (`s3://...`). To open that file from Python, call
`connection.register_filesystem(fsspec.filesystem("s3"))`; in DuckDB's shell use its own extension (`load httpfs` and a
secret, for S3).
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from dreamshard.files import atomic
from storage.filesystem import AnyPath, failures, list_files
from storage.lake import confined, derived_views, schemas
from storage.lake.lake_files import LAKE, LakeFiles
from storage.lake.parquet_files import check_footers
from storage.lake.query_watch import Bounds, GiveUp, watched
from storage.lake.readers import reading
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

_REPLACED = ("FileExpired", "FileNotFoundError")
"""What fsspec says, through DuckDB, of a file on an object store that another host replaced or removed while it was read."""
_TIMES_REPLACED = 4
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+\"?(\w+)\"?\s*;?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What a query answers, and the one folder outside of the lake to which DuckDB may write it.

    Attributes:
        rows: computed each time it is read.
        scratch: a folder that is removed with the query.
        check: raises `ValueError` once the query has exceeded a bound.
    """

    rows: duckdb.DuckDBPyRelation
    scratch: Path
    check: Callable[[], None]

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The rows one by one, of which a batch at a time is in memory.

        Raises:
            ValueError: the query has exceeded a bound, also while its caller used a row.
        """
        names = self.rows.columns
        for row in self.rows.iter_rows():
            self.check()
            yield dict(zip(names, row, strict=True))


def connect(settings: Settings, versions: pa.Table | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views, which the caller closes; a view without files is empty.

    Args:
        versions: rows of the view `versions` instead of those in the lake.

    Raises:
        ValueError: a file of the lake is damaged; the message names it.
    """
    connection = duckdb.connect(config=confined.BEFORE)
    connection.execute("set enable_progress_bar = false")  # shown after two seconds, amid a JSON answer too
    if versions is not None:
        connection.register("registered_versions", versions)
    connection.register_filesystem(LakeFiles(settings.lake_root))
    _create_views(connection, settings, LAKE, "" if versions is None else "from registered_versions")
    return connection


def write_catalog(settings: Settings) -> None:
    """Replace `catalog.duckdb`, without disturbing readers of the old file; its paths are absolute.

    Call it after every stage: a view written while its dataset had no files stays empty.

    Raises:
        ValueError: a file of the lake is damaged; the message names it.
    """
    target = settings.catalog_path
    with atomic.replacing(target) as temporary, duckdb.connect(temporary, config=confined.BEFORE) as connection:
        if not isinstance(settings.lake_root, Path):
            connection.register_filesystem(settings.lake_root.fs)
        _create_views(connection, settings, f"{settings.lake_root}".rstrip("/") + "/")


@contextmanager
def answering(
    settings: Settings,
    sql: str,
    versions: pa.Table | None = None,
    memory_gb: float = confined.MEMORY_GB,
    seconds: float = math.inf,
    give_up: GiveUp | None = None,
) -> Iterator["Answer"]:
    """Yield what one query over the views answers, repeated names of columns numbered; it is computed when it is read.

    The query reads the lake and nothing else, and writes nothing: see `storage.lake.confined`.

    Args:
        versions: as for `connect`.
        memory_gb: GiB that it may use.
        seconds: that it may take, until the block ends.
        give_up: as for `query_watch.watched`.

    Raises:
        ValueError: DuckDB cannot run it, it may do more than read, it asks nothing, or it exceeds a bound.
    """
    with (
        TemporaryDirectory() as scratch,
        reading(settings.lake_root),
        connect(settings, versions) as connection,
    ):
        confined.confine(connection, Path(scratch), memory_gb)
        bounds = Bounds(seconds=seconds, file_bytes=int(confined.SPILL_TIMES * memory_gb * 2**30))
        try:
            with watched(connection, Path(scratch), bounds, give_up) as check_bounds:
                confined.check(connection, _readable(sql))
                answer: duckdb.DuckDBPyRelation | None = connection.sql(_readable(sql))
                if answer is None:
                    raise ValueError(
                        f"{sql!r} asks for no rows, so there is nothing to answer; write a query over the views "
                        f'{", ".join(VIEWS)}, for example "select * from versions"'
                    )
                names = answer.columns
                answer = answer if len(set(names)) == len(names) else answer.project("*")  # which numbers them: a, a_1
                yield Answer(rows=answer, scratch=Path(scratch), check=check_bounds)
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise ValueError(
                f"this query needs more than the {memory_gb:g} GiB of memory that it may use, or {confined.SPILL_TIMES} "
                "times as much disk, so it was stopped; ask for fewer rows or columns, or raise --memory-gb"
            ) from error
        except failures(duckdb.Error) as error:
            reason = _reason(error, settings.lake_root)
            raise ValueError(
                f"DuckDB cannot answer this: {reason}; the views are {', '.join(VIEWS)}, and `describe cost_samples` "
                "lists the columns of one"
            ) from error


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    """Run one query over the views; returns a dictionary per row.

    Raises:
        ValueError: as `answering`.
    """
    with answering(settings, sql) as answer:
        return [dict(zip(answer.rows.columns, row, strict=True)) for row in answer.rows.fetchall()]


def _reason(error: BaseException, root: AnyPath) -> str:
    """What an error says in one line, with the addresses of files as people know them."""
    text = str(error).split("\n\n")[0].strip()
    if "Traceback (most recent call last)" in text:  # so DuckDB hands on what a file system raised
        text = str(error).strip().splitlines()[-1]
    return text.replace("\n", " ").replace(LAKE, f"{str(root).rstrip('/')}/")


def _readable(sql: str) -> str:
    """`describe VIEW` as a query of its columns: in DuckDB `describe tables` lists all views instead."""
    match = _DESCRIBE.fullmatch(sql)
    if match is None or match[1].lower() not in VIEWS:
        return sql
    return f'select column_name, column_type from (describe select * from "{match[1].lower()}")'


def _create_views(connection: duckdb.DuckDBPyConnection, settings: Settings, address: str, versions: str = "") -> None:
    """Create all views; files that another host replaces or removes meanwhile are looked for anew.

    Args:
        address: how the addresses of the lake's files begin for this connection.
        versions: a query of the rows of `versions`; empty for those in the lake.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    root = settings.lake_root
    for remaining in reversed(range(_TIMES_REPLACED + 1)):
        try:
            _define_views(connection, root, address, versions)
            return
        except duckdb.Error as error:
            if isinstance(root, Path) or not any(kind in str(error) for kind in _REPLACED):
                raise _unreadable(error, root) from error
            if not remaining:
                raise
            root.fs.invalidate_cache()


def _unreadable(error: duckdb.Error, root: AnyPath) -> ValueError:
    """Why no view can be made of the lake's files: the first damaged one, else what DuckDB says."""
    try:
        for dataset in sorted({dataset for dataset, *_ in _SOURCES.values()}):
            check_footers(list_files(root / dataset, "**/*.parquet"))
    except ValueError as damaged:
        return damaged
    return ValueError(
        f"DuckDB cannot read the lake in {root} ({_reason(error, root)}), so nothing can be asked of it; a file in it may "
        "come from another program: remove it and run the stage that writes it again"
    )


def _define_views(connection: duckdb.DuckDBPyConnection, root: AnyPath, address: str, versions: str) -> None:
    rows = {
        name: versions if name == "versions" and versions else _rows(connection, root, address, name)
        for name in _SOURCES
    }
    for name in ("versions", "tables", "tasks", "cost_samples", "device_costs", "shard_costs", "exchange_samples"):
        connection.execute(f"create or replace view {name} as {rows[name]}")
    connection.execute(
        f"create or replace view evaluations as {derived_views.EVALUATIONS.format(rows=rows['evaluations'])}"
    )
    connection.execute(f"create or replace view evaluated_devices as {derived_views.EVALUATED_DEVICES}")
    connection.execute(f"create or replace view placements as {derived_views.PLACEMENTS}")
    costs = derived_views.TABLE_COSTS.format(estimates=rows["table_estimates"])
    connection.execute(f"create or replace view table_costs as {costs}")


_DISTINCT = """
    qualify row_number() over (partition by testbed, dataset_version, sample_id, of_device order by of_time) = 1
"""
"""Hosts that do the same run at the same time share no lock, and may write one sample to two files."""

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


def _rows(connection: duckdb.DuckDBPyConnection, root: AnyPath, address: str, name: str) -> str:
    """A query of the rows of a dataset's files."""
    dataset, schema, folders, condition = _SOURCES[name]
    folder = root / dataset
    if not (any(folder.rglob("*.parquet")) if isinstance(folder, Path) else list_files(folder, "**/*.parquet")):
        return _empty(connection, schema)
    files = f"{address}{dataset}/**/*.parquet".replace("'", "''")
    source = f"read_parquet('{files}', hive_partitioning = false, union_by_name = true, filename = true)"
    once = _DISTINCT if dataset == "cost_samples" and not isinstance(root, Path) else ""
    columns = {column: f'"{column}"' for column in schema.names} | _from_path(folders)
    try:
        sql = _select(columns, source, condition, once)
        connection.execute(f"describe {sql}")
    except duckdb.BinderException:
        sql = _select(_known(connection, source, schema, columns), source, condition, once)
    return sql


def _select(columns: dict[str, str], source: str, condition: str, once: str) -> str:
    selected = ", ".join(f'{value} as "{name}"' for name, value in columns.items())
    if not once:
        return f"select {selected} from {source} {condition}"
    names = ", ".join(f'"{name}"' for name in columns)
    within = f"select {selected}, device as of_device, created_at as of_time from {source} {condition}"
    return f"select {names} from ({within}) {once}"  # of columns by name, so that conditions on folders reach the files


def _from_path(folders: tuple[str, ...]) -> dict[str, str]:
    """Columns as the names of folders have them, so that DuckDB opens only the files that a condition asks for.

    Earlier releases called the folders `column=value`.
    """
    columns = {}
    for depth, name in enumerate(reversed(folders), start=2):
        columns[name] = f"url_decode(regexp_replace(split_part(filename, '/', -{depth}), '^\\w+=', ''))"
    return columns


def _known(
    connection: duckdb.DuckDBPyConnection, source: str, schema: pa.Schema, columns: dict[str, str]
) -> dict[str, str]:
    """The columns, null where they are newer than all files."""
    known = {row[0] for row in connection.execute(f"describe select * from {source}").fetchall()}
    kinds = connection.from_arrow(schema.empty_table()).types
    return {
        name: columns[name] if name in known else f"cast(null as {kind})"
        for name, kind in zip(schema.names, kinds, strict=True)
    }


def _empty(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> str:
    """A query without rows, with the columns of `schema`."""
    kinds = connection.from_arrow(schema.empty_table()).types
    columns = (f'cast(null as {kind}) as "{name}"' for name, kind in zip(schema.names, kinds, strict=True))
    return f"select {', '.join(columns)} where false"
