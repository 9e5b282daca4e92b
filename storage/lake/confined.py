"""What a query may do: read the lake's own folders, within a bound of memory and of disk, and nothing else.

Two locks. DuckDB's own settings deny every file but the query's folder of temporary files, all extensions, and any change of
the settings; the lake's files are there as a file system that cannot write (`lake_files`). And only statements that read are
run: of what DuckDB parsed, every part must be one of those listed here, so what a later DuckDB adds is refused until it is
listed. The parts of a `pivot` whose columns the data name are not shown; there the words decide.
"""

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from storage.lake.lake_files import LAKE

MEMORY_GB = 2.0
"""GiB that a query may use."""

SPILL_TIMES = 4
"""How many times its memory a query may put on disk meanwhile."""

_GIB = 2**30
_OVERHEAD = _GIB  # what threads, the reader of Parquet and Python use beside the memory that DuckDB counts

BEFORE: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "async_threads": 0,  # or else one in a hundred answers that is interrupted while it is written to CSV waits for ever
    "python_enable_replacements": False,  # names of views never mean variables of this program
}
"""Settings of a connection that cannot be changed later, or that views need as well."""

_READS = duckdb.StatementType.SELECT  # describe, show, summarize, from and values too; writing in a CTE as well
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+|\((?:[\w\s,]*)\)\s*)?", re.IGNORECASE)
_PIVOT = re.compile(r"\s*\(*\s*(?:select|from|with|pivot)\b", re.IGNORECASE)  # no COPY, EXPORT or CREATE begins so

_WORD = re.compile(r"\w+")
_WRITING_WORDS = frozenset({"insert", "update", "delete", "merge", "copy", "create", "truncate"})
"""What makes a statement write that begins like a query."""

_READING_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What DuckDB calls queries that only read, wherever they are within a statement; COPY_QUERY_NODE is one of the others."""

_TABLE_FUNCTIONS = frozenset(
    {
        *("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"),
        *("histogram", "histogram_values", "read_parquet", "parquet_scan", "glob"),
        *("parquet_metadata", "parquet_file_metadata", "parquet_kv_metadata", "parquet_schema"),
        *("duckdb_columns", "duckdb_views", "duckdb_functions", "duckdb_types", "duckdb_keywords"),
        *("pragma_table_info", "pragma_show", "pragma_version"),
    }
)
"""Table functions that a query may name. `query` and `json_execute_serialized_sql` run text that nobody has checked."""


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check that `sql` is one statement that only reads.

    Raises:
        ValueError: it is several, or one that may write, attach, load or set anything, or not text.
        duckdb.Error: it is not SQL.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in sql):
        raise ValueError(
            f"{sql!r} is not text in UTF-8: half a character is in it, which DuckDB cannot read; write the query in UTF-8"
        )
    statements = connection.extract_statements(sql)
    if len(statements) > 1:
        raise ValueError(
            f"{sql!r} is {len(statements)} statements, and a query is one, so nothing was run; ask one after the other"
        )
    for statement in statements:
        explain = _EXPLAIN.match(sql) if statement.type == duckdb.StatementType.EXPLAIN else None
        if explain is not None:
            check(connection, sql[explain.end() :])  # which `explain analyze` runs
        elif statement.type == _READS:
            _check_parts(connection, sql)
        elif statement.type != duckdb.StatementType.MULTI or _PIVOT.match(sql) is None:
            raise _refusal(sql, statement.type.name)
        else:
            _check_words(connection, sql)


def _check_words(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check every word of a `pivot` whose columns the data name, also those within texts and comments.

    DuckDB makes several statements of it and does not show their parts.
    """
    rows = connection.execute(
        "select function_name from duckdb_functions() where function_type like 'table%'"
    ).fetchall()
    functions = {name.lower() for (name,) in rows} - _TABLE_FUNCTIONS
    words = {word.lower() for word in _WORD.findall(sql)}
    if found := sorted(words & (functions | _WRITING_WORDS)):
        raise _refusal(sql, f"{found[0]} may do more in a pivot without `in (...)`, whose parts DuckDB does not show")


def _check_parts(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check every part of a statement as DuckDB parsed it."""
    rows = connection.execute("select json_serialize_sql(?)", [sql]).fetchall()
    try:
        parsed = json.loads(rows[0][0])
    except RecursionError as error:
        raise ValueError(
            "this query is nested too deeply to be checked, so it was not run; name its parts in a `with`"
        ) from error
    if parsed["error"]:
        raise _refusal(sql, parsed["error_message"])
    parts = [parsed]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
            _check_part(part, sql)


def _check_part(part: dict[str, Any], sql: str) -> None:
    kind = str(part.get("type"))
    if ("cte_map" in part or kind.endswith("_NODE")) and kind not in _READING_NODES:
        raise _refusal(sql, kind.removesuffix("_QUERY_NODE"))
    if kind == "TABLE_FUNCTION" and (name := part["function"]["function_name"].lower()) not in _TABLE_FUNCTIONS:
        raise _refusal(sql, f"the function {name} may do more")


def _refusal(sql: str, reason: str) -> ValueError:
    return ValueError(
        f"{sql!r} is not a query that only reads ({reason}), so it was not run; begin with select, from, with, describe, "
        "summarize or explain, and use --csv or --parquet to write the answer to a file"
    )


def confine(connection: duckdb.DuckDBPyConnection, scratch: Path, memory_gb: float) -> None:
    """Deny a connection everything but the lake's files and those below `scratch`, for good.

    Args:
        connection: that `LakeFiles` is registered with.
        scratch: an empty folder of this query's own, for what does not fit into memory and for the answer's file.
        memory_gb: GiB of memory; `SPILL_TIMES` as many of disk.
    """
    listed = ", ".join("'" + folder.replace("'", "''") + "'" for folder in (LAKE, f"{scratch}/"))
    spill = str(scratch / "spilled").replace("'", "''")
    for setting in (
        f"memory_limit = '{int(memory_gb * _GIB)}B'",
        f"temp_directory = '{spill}'",
        f"max_temp_directory_size = '{int(SPILL_TIMES * memory_gb * _GIB)}B'",
        f"allowed_directories = [{listed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"set {setting}")


@contextmanager
def bounded_process(memory_gb: float) -> Iterator[None]:
    """While the block runs, refuse this process more than what it has, what a query may use and a GiB besides.

    DuckDB does not count a single huge value (`repeat('a', 3000000000)`) as memory of the query. On Linux only: elsewhere
    the kernel does not say how much a process has.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        yield
        return
    used = int(next(line for line in status.read_text().splitlines() if line.startswith("VmData")).split()[1]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [used + int(memory_gb * _GIB) + _OVERHEAD, *(limit for limit in (soft, hard) if limit >= 0)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
