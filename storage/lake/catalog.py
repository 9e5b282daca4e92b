"""DuckDB over the lake: views of its Parquet files, in memory for the program and as a file for other tools.

No file is locked: a view reads the files that exist at the moment of the query, in the program mostly compacted ones.

A remote lake is read through fsspec with its credentials, without any DuckDB extension. The views in `catalog.duckdb` then
hold remote addresses (`s3://...`). To open that file from Python, call
`connection.register_filesystem(fsspec.filesystem("s3"))`; in DuckDB's shell use its own extension (`load httpfs` and a
secret, for S3).
"""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from dreamshard.files import replacing
from storage.filesystem import AnyPath, list_files
from storage.lake.parquet_files import DECLARED, compact, datasets, parts
from storage.settings import Settings

_DEFINED = Path(__file__).with_name("views.sql").read_text(encoding="utf-8")
VIEWS = tuple(re.findall(r"^create view (\w+)", _DEFINED, re.MULTILINE))

_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # names of views never mean variables of this program
}
_HIVE = "hive_partitioning = true, hive_types_autocast = false"  # `union_by_name` would open every file for each view


def connect(settings: Settings) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views, which the caller closes; a view without files is empty."""
    connection = duckdb.connect(config=_CONFIG)
    connection.execute("set enable_progress_bar = false")  # shown after two seconds, amid a JSON answer too
    _create_views(connection, settings.lake_root, are_listed=True)
    return connection


def write_catalog(settings: Settings) -> None:
    """Compact the lake, and replace `catalog.duckdb`, whose paths are absolute, without disturbing readers of the old file.

    Call it after every flow: a view written while its dataset had no files stays empty.
    """
    compact(settings.lake_root)
    with replacing(settings.catalog_path) as temporary, duckdb.connect(temporary, config=_CONFIG) as connection:
        _create_views(connection, settings.lake_root)


@contextmanager
def answering(settings: Settings, sql: str) -> Iterator[duckdb.DuckDBPyRelation]:
    """Yield what a query over the views answers, repeated names of columns numbered; it is computed when it is read.

    Raises:
        ValueError: DuckDB cannot run it, or it asks nothing.
    """
    with connect(settings) as connection:
        try:
            answer: duckdb.DuckDBPyRelation | None = connection.sql(sql)
            if answer is None:
                raise ValueError(
                    f"{sql!r} asks for no rows; write a query over the views {', '.join(VIEWS)}, for example "
                    '"select * from versions"'
                )
            names = answer.columns
            yield answer if len(set(names)) == len(names) else answer.project("*")  # which numbers them: a, a_1
        except duckdb.Error as error:
            raise ValueError(f"DuckDB: {_reason(error)}; `show tables` lists views, `describe VIEW` columns") from error


def _reason(error: duckdb.Error) -> str:
    """An error's message, in one line."""
    return str(error).split("\n\n")[0].strip().replace("\n", " ")


def _create_views(connection: duckdb.DuckDBPyConnection, root: AnyPath, *, are_listed: bool = False) -> None:
    """Create all views over the lake in `root`: of its files, and of an empty table with the columns of each dataset.

    Args:
        are_listed: the views are of the files that there are now, so that not each view that reads them lists them again.
    """
    if not isinstance(root, Path):
        connection.register_filesystem(root.fs)
    try:
        connection.execute(f"{DECLARED}; create schema lake")
        for name in datasets():
            rows = f"from empty.{name}"
            if are_listed:
                counted, others = parts(root, name)
                for kind, paths in enumerate((counted, [info.path for info in others.values()])):
                    if paths:
                        connection.execute(
                            f"set variable {name}_{kind} = ?", [[glob.escape(str(path)) for path in paths]]
                        )
                        rows += f" union all by name from read_parquet(getvariable('{name}_{kind}'), {_HIVE})"
            elif files := list_files(root / name, "**/*.parquet"):
                folders = "*/" * (len(files[0].parent.parts) - len((root / name).parts))
                pattern = f"{glob.escape(str(root / name))}/{folders}*.parquet".replace("'", "''")
                rows += f" union all by name from read_parquet('{pattern}', {_HIVE})"
            connection.execute(f"create view lake.{name} as {rows}")
        connection.execute(_DEFINED)
    except duckdb.Error as error:
        raise ValueError(f"cannot read the lake ({_reason(error)}); remove that file and rerun its stage") from error
