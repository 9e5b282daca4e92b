"""MLflow's own SQLite database: created and upgraded once, under a lock, on a copy that is renamed into place.

MLflow creates its tables in the file that everyone opens, in some 60 migrations that are no transaction: a process killed
in between leaves a database that no later one can open, and two processes at once disturb each other. Here the others wait
for the lock, and a killed process leaves a copy that the next one removes. Databases of a team, such as PostgreSQL, and
servers are left to those who run them.
"""

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import mlflow
import psutil
from alembic.script import ScriptDirectory
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as untyped_utils
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from dreamshard.files import atomic
from dreamshard.files.locks import locked
from storage.mlflow_store.presence import LOCAL

logger = logging.getLogger(__name__)

utils: Any = untyped_utils
_DEFAULT_EXPERIMENT = 0
_BUSY_S = 60.0
_GLANCE_S = 3.0  # a process that waits for the lock has looked into the file shortly before
_ready: set[tuple[Path, int]] = set()  # databases that this process has checked, with their inodes


def prepare(tracking_uri: str, artifact_root: str) -> None:
    """Make the database of `tracking_uri` one that this MLflow can use, if it is a file on this machine.

    Args:
        tracking_uri: of anything else, such as a server, nothing is touched.
        artifact_root: where MLflow's default experiment, which this project does not use, would keep files.

    Raises:
        ValueError: it cannot be created or upgraded, a newer MLflow has written it, or it is no database.
    """
    if not tracking_uri.startswith(LOCAL):
        return
    path = Path(os.path.realpath(tracking_uri.removeprefix(LOCAL)))
    if path.exists() and (path, path.stat().st_ino) in _ready:
        return
    head = utils._get_latest_schema_revision()
    if revision(path) != head:
        _check_folder(path)
        with locked(path.with_name(f"{path.name}.lock"), f"another process prepares {path}"):
            if revision(path) != head:
                _migrate(path, artifact_root)
    _ready.add((path, path.stat().st_ino))


def revision(path: Path) -> str | None:
    """The schema that the file says it has; None if there is no file, or the schema is not complete.

    Raises:
        ValueError: the file is no database, or cannot be read.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as database:
            if not database.execute("select 1 from sqlite_master where name = 'alembic_version'").fetchone():
                return None
            found = database.execute("select version_num from alembic_version").fetchall()
    except sqlite3.Error as error:
        raise ValueError(
            f"{path} cannot be read as MLflow's database ({error}), so no run can be kept in it; if the file is damaged, "
            "restore a copy of it, or move it away and a new one is made"
        ) from error
    return str(found[0][0]) if len(found) == 1 else None


def _check_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"MLflow's database {path} cannot be created ({error.strerror}), so no run could be kept; point --home or "
            "MLFLOW_TRACKING_URI elsewhere"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise ValueError(
            f"MLflow's database {path} has to be {'upgraded' if path.exists() else 'created'}, and this user may not write "
            f"in its folder, so no run could be kept; let its owner do so, or point --home elsewhere"
        )


def _migrate(path: Path, artifact_root: str) -> None:
    """Create or upgrade the database; the caller holds the lock."""
    for left in path.parent.glob(f".{path.name}.*.tmp*"):  # by a process that was killed here
        left.unlink()
    if path.exists():
        _check_nobody_uses(path)
    if _is_unused(path):
        _create(path, artifact_root)
        return
    found = revision(path)
    if found is not None and not _is_known(found):
        raise ValueError(
            f"{path} has the schema {found}, which MLflow {mlflow.__version__} does not know, so a newer MLflow has written "
            "it and this one could damage it; install that version again, or use another --home"
        )
    _upgrade(path, found)


def _create(path: Path, artifact_root: str) -> None:
    with _copy(path) as copy:
        uri = f"{LOCAL}{copy}"
        store: Any = SqlAlchemyStore
        event.listen(store._get_or_create_engine(uri), "connect", _without_syncing)
        try:
            with _quietly():
                store(uri, artifact_root)  # which also adds the default experiment
        finally:
            store._engine_map.pop(uri).dispose()


def _upgrade(path: Path, found: str | None) -> None:
    """Upgrade a copy, keep what was there as another file, and put the copy in its place."""
    kept = path.with_name(f"{path.name}.before-{mlflow.__version__}")
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as former:
            mode = former.execute("pragma journal_mode").fetchone()[0]
            former.execute("pragma journal_mode = delete")  # side files would be taken for those of the copy
            former.execute("begin immediate")
            with _copy(path) as copy:
                with closing(sqlite3.connect(copy)) as database, closing(sqlite3.connect(path)) as source:
                    source.backup(database)
                engine = utils.create_sqlalchemy_engine(f"{LOCAL}{copy}")
                event.listen(engine, "connect", _without_syncing)
                try:
                    with _quietly():
                        utils._upgrade_db(engine)
                finally:
                    engine.dispose()
                with closing(sqlite3.connect(copy)) as database:
                    database.execute(f"pragma journal_mode = {mode}")
                shutil.copy2(path, kept)
    except (sqlite3.Error, SQLAlchemyError, MlflowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"MLflow's database {path} with the schema {found} cannot be upgraded to that of MLflow {mlflow.__version__} "
            f"({first}), so no run can be kept in it; it is unchanged: restore an earlier copy, or move it away and a new "
            "one is made"
        ) from error
    logger.warning("upgraded %s from schema %s; as it was, it is kept as %s", path, found, kept)


@contextmanager
def _copy(path: Path) -> Iterator[Path]:
    """A file that takes the place of `path` when the block ends without an error; side files are gone with it."""
    try:
        with atomic.replacing(path) as copy:
            yield copy
    finally:
        for side in path.parent.glob(f".{path.name}.*.tmp-*"):
            side.unlink(missing_ok=True)


def _without_syncing(connection: sqlite3.Connection, _: object) -> None:
    """The copy is synced as a whole before it is renamed."""
    connection.execute("pragma synchronous = off")


@contextmanager
def _quietly() -> Iterator[None]:
    """No line per migration."""
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


def _is_unused(path: Path) -> bool:
    """Whether nothing was kept yet: there is no file, or somebody was killed while creating it."""
    if not path.exists():
        return True
    with closing(sqlite3.connect(path, timeout=_BUSY_S)) as database:  # writable, to undo what was half-written
        there = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
        queries = {
            "runs": "select 1 from runs",
            "registered_models": "select 1 from registered_models",
            "experiments": f"select 1 from experiments where experiment_id != {_DEFAULT_EXPERIMENT}",
        }
        return not any(
            database.execute(f"{query} limit 1").fetchone() for table, query in queries.items() if table in there
        )


def _is_known(found: str) -> bool:
    """Whether this MLflow has the migration that leads to a schema."""
    script = ScriptDirectory.from_config(utils._get_alembic_config(""))
    return any(each.revision == found for each in script.walk_revisions())


def _check_nobody_uses(path: Path) -> None:
    """What a process wrote into the file after it was copied would be lost.

    Raises:
        ValueError: another process of this user keeps the database open.
    """
    deadline = time.monotonic() + _GLANCE_S
    while users := _users(path):
        if time.monotonic() > deadline:
            raise ValueError(
                f"MLflow's database {path} has to be brought to the schema of MLflow {mlflow.__version__} while process "
                f"{', '.join(map(str, users))} uses it, whose writing would be lost; end that program (`up`, `worker` or a "
                "run) and try again"
            )
        time.sleep(0.2)


def _users(path: Path) -> list[int]:
    users = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(file.path == str(path) for file in process.open_files()):
                users.append(process.pid)
        except (psutil.Error, OSError):
            continue  # gone, or of another user
    return users
