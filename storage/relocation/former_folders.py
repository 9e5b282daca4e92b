"""Folders of the lake that earlier releases called `column=value`: called by the value alone once nobody uses the home.

Readers such as pandas take `column=value` for a second column of that name. Only a lake inside of the home is renamed, since
only its users hold the home's lock.
"""

import logging
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

logger = logging.getLogger(__name__)

_FORMER = re.compile(r"\w+=(?=.)")  # values have no `=` in them, since it is escaped
_DEEPEST = 3  # dataset, and up to two columns


def found(home: Path) -> list[Path]:
    """Folders of the home's lake with former names, the deepest first."""
    folders: list[Path] = []
    for folder, below, _ in os.walk(home / "lake"):
        depth = len(Path(folder).relative_to(home / "lake").parts)
        folders += [Path(folder, name) for name in below if _FORMER.match(name)]
        if depth + 1 >= _DEEPEST:
            below.clear()
    return sorted(folders, key=lambda folder: len(folder.parts), reverse=True)


def rename(home: Path) -> None:
    """Rename them, and what MLflow's database says of them; who calls it uses the home alone.

    It may be interrupted and run again. What cannot be renamed is used under its former name, which is logged.
    """
    folders = found(home)
    if not folders:
        return
    try:
        _rename_in_mlflow(home)
        for folder in folders:
            _merge(folder, folder.with_name(_new_name(folder.name)))
    except (OSError, sqlite3.Error) as error:
        logger.warning(
            "folders of %s that earlier releases named keep their names (%s), so pandas needs `partitioning=None` for them; "
            "make them writable and open the home again",
            home / "lake",
            error,
        )
        return
    logger.warning("%d folders of %s are now named by values alone, as other readers need", len(folders), home / "lake")


def _new_name(name: str) -> str:
    from storage.lake.parquet_files import visible

    return visible(_FORMER.sub("", name, count=1))


def _merge(source: Path, target: Path) -> None:
    """Move a folder to a name that may be taken already; of two files of one name, the later one stays."""
    if not target.exists():
        source.rename(target)
        return
    for path in source.iterdir():
        other = target / path.name
        if path.is_dir():
            _merge(path, other)
        elif not other.exists() or other.stat().st_mtime_ns < path.stat().st_mtime_ns:
            path.replace(other)
        else:
            path.unlink()
    source.rmdir()


def _rename_in_mlflow(home: Path) -> None:
    """Datasets of runs are addresses of these folders."""
    database = home / "mlflow.db"
    if not database.exists():
        return
    below = re.compile(rf"(?<={re.escape(f'{home}/lake/')})[^\"]+")

    def renamed(text: str) -> str:
        return below.sub(lambda path: "/".join(map(_new_name, path[0].split("/"))), text)

    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        if connection.execute("select 1 from sqlite_master where type = 'table' and name = 'datasets'").fetchone():
            connection.create_function("renamed", 1, renamed, deterministic=True)
            connection.execute(
                "update datasets set dataset_source = renamed(dataset_source) where instr(dataset_source, ?) > 0",
                (f"{home}/lake/",),
            )
