"""What a query may do: read the lake's own folders, within a bound of memory and of disk, and nothing else.

Two locks, since each leaves something open. DuckDB's own settings deny every file but the lake's and those that the answer
is written to, all extensions, and any change of the settings. They would still let a query write below the lake, so
only statements that read are run at all.
"""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from storage.filesystem import AnyPath

MEMORY_GB = 2.0
"""GiB that a query may use."""

SPILL_TIMES = 4
"""How many times its memory a query may put on disk meanwhile."""

_GIB = 2**30
_OVERHEAD = _GIB  # what threads, the reader of Parquet and Python use beside the memory that DuckDB counts

BEFORE: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # names of views never mean variables of this program
}
"""Settings of a connection that cannot be changed later, or that views need as well."""

_READS = duckdb.StatementType.SELECT  # describe, show, summarize, from and values too
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+|\((?:[\w\s,]*)\)\s*)?", re.IGNORECASE)
_PIVOT = re.compile(r"\s*\(*\s*(?:select|from|with|pivot)\b", re.IGNORECASE)  # no COPY, EXPORT or CREATE begins so


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Check that `sql` is one statement that only reads.

    Raises:
        ValueError: it is several, or one that may write, attach, load or set anything.
        duckdb.Error: it is not SQL.
    """
    statements = connection.extract_statements(sql)
    if len(statements) > 1:
        raise ValueError(
            f"{sql!r} is {len(statements)} statements, and a query is one, so nothing was run; ask one after the other"
        )
    for statement in statements:
        explain = _EXPLAIN.match(sql) if statement.type == duckdb.StatementType.EXPLAIN else None
        if explain is not None:
            check(connection, sql[explain.end() :])  # which `explain analyze` runs
        elif statement.type != _READS and not (
            statement.type == duckdb.StatementType.MULTI and _PIVOT.match(sql) is not None
        ):
            raise ValueError(
                f"{sql!r} is not a query that only reads ({statement.type.name}), so it was not run; begin with select, "
                "from, with, describe, summarize or explain, and use --csv or --parquet to write the answer to a file"
            )


def confine(connection: duckdb.DuckDBPyConnection, root: AnyPath, scratch: Path, memory_gb: float) -> None:
    """Deny a connection everything but files below `root` and `scratch`, for good.

    Args:
        root: the lake's folder.
        scratch: an empty folder of this query's own, for what does not fit into memory and for the answer's file.
        memory_gb: GiB of memory; `SPILL_TIMES` as many of disk.
    """
    folders = [*_spellings(root), f"{scratch}/"]
    listed = ", ".join("'" + folder.replace("'", "''") + "'" for folder in folders)
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


def _spellings(root: AnyPath) -> list[str]:
    """A folder as DuckDB is given it, and as fsspec lists its files."""
    if isinstance(root, Path):
        return [f"{root}/"]
    listed = str(root.fs.unstrip_protocol(root.path)).rstrip("/")
    return sorted({f"{str(root).rstrip('/')}/", f"{listed}/"})


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
