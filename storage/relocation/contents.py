"""What a home holds that names its own folder: MLflow's and Prefect's databases, text files, and the catalog's views.

Histories (logs, Prefect's events) keep what they said. Parquet files and checkpoints hold no addresses.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from storage.relocation.addresses import Relocation
from storage.settings import Settings

_DATABASES = {"mlflow.db": (), "prefect/prefect.db": ("log", "events", "event_resources")}
"""Database -> tables of its history."""

_TEXTS = ("*.json", "results/*", "evaluations/*", "comparisons/*", "plans/*")
_TEXT_TYPES = {"", ".json", ".html", ".md", ".txt", ".yaml", ".yml", ".csv"}
_LARGEST_BYTES = 64 * 2**20
RECORD = "home.json"
"""Where the home lay when it was opened last; `settling` writes it."""


def rewrite(home: Path, relocation: Relocation) -> int:
    """Rewrite everything in the home that names an old folder; returns the number of values, files and views' files.

    It may be interrupted and run again: a database or a file is rewritten as a whole or not at all.

    Raises:
        sqlite3.Error: a database cannot be written.
        OSError: a file cannot be written.
    """
    databases = [(home / name, history) for name, history in _DATABASES.items() if (home / name).exists()]
    rewritten = sum(_rewrite_database(path, history, relocation) for path, history in databases)
    rewritten += sum(_rewrite_file(path, relocation) for path in _texts(home))
    if (home / "catalog.duckdb").exists():
        from storage.lake import catalog

        catalog.write_catalog(Settings.from_environment({**os.environ, "DREAMSHARD_HOME": str(home)}))
        rewritten += 1
    return rewritten


def folder_of_old_home(home: Path) -> Path | None:
    """Where a home without a record lay, by what MLflow or Prefect keep in it; None if nothing says."""
    location = experiment_location(home)
    end = "/mlartifacts/dreamshard"
    if location is not None and location.endswith(end) and (home / end[1:]).is_dir():
        from urllib.parse import unquote

        return Path(unquote(location.removesuffix(end).removeprefix("file://")))
    query = "select json_extract(data, '$.storage_key') from task_run_state where data like '%\"storage_key\"%' limit 1"
    key = _first(home / "prefect" / "prefect.db", query) or ""
    folder = Path(key).parent
    return folder.parent if folder.name == "results" and folder.is_absolute() else None


def experiment_location(home: Path) -> str | None:
    """The address at which the home's MLflow keeps files of runs and versions; None before the first run."""
    return _first(home / "mlflow.db", "select artifact_location from experiments where name = 'dreamshard'")


def _first(database: Path, query: str) -> str | None:
    """The first value that the query finds; None where there is no such database, table or row."""
    if not database.exists():
        return None
    with closing(sqlite3.connect(database)) as connection:
        try:
            row = connection.execute(query).fetchone()
        except sqlite3.OperationalError:  # another program's tables
            return None
    return None if row is None or row[0] is None else str(row[0])


def _rewrite_database(path: Path, history: tuple[str, ...], relocation: Relocation) -> int:
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        connection.create_function("rewritten", 1, relocation.rewritten, deterministic=True)
        connection.execute("begin immediate")
        return sum(
            connection.execute(
                f"update {table} set {column} = rewritten({column}) where typeof({column}) = 'text' and "
                f"({' or '.join(f'instr({column}, ?) > 0' for _ in relocation.needles)}) "
                f"and rewritten({column}) != {column}",
                relocation.needles,
            ).rowcount
            for table, column in _columns(connection)
            if table.strip('"') not in history
        )


def _columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every table with every column, as SQL writes their names."""
    tables = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
    return [
        (_name(table), _name(column))
        for (table,) in tables.fetchall()
        for _, column, *_ in connection.execute(f"pragma table_info({_name(table)})").fetchall()
    ]


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _texts(home: Path) -> Iterator[Path]:
    paths = [path for pattern in _TEXTS for path in home.glob(pattern) if path.name != RECORD]
    for folder, below, names in os.walk(home / "mlartifacts"):
        below[:] = [name for name in below if name != "code"]  # of dreamshard itself, in every version
        paths += [Path(folder, name) for name in names]
    for path in paths:
        if path.suffix in _TEXT_TYPES and path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
            yield path


def _rewrite_file(path: Path, relocation: Relocation) -> int:
    """Rewrite one text file, which keeps its time: what is old may be pruned."""
    content = path.read_bytes()
    if not any(needle.encode() in content for needle in relocation.needles):
        return 0
    try:
        before = content.decode()
    except UnicodeDecodeError:  # no text after all
        return 0
    after = relocation.rewritten(before)
    if after == before:
        return 0
    stat = path.stat()
    replace_text(path, after)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    path.chmod(stat.st_mode)
    return 1


def replace_text(path: Path, text: str) -> None:
    """Write a file of the home whole or not at all; `dreamshard.files` would load torch each time a home is opened."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)
