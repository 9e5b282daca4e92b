"""A new home's database: whoever is killed or comes at the same time, the next command can use it."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.store.db import utils

from storage.mlflow_store import database, runs
from storage.settings import Settings

OPEN_AND_RUN = """
import sys
from storage.mlflow_store import runs
from storage.settings import Settings
with runs.chain(Settings.from_environment({"DREAMSHARD_HOME": sys.argv[1]}), "retrain"):
    pass
"""


def settings_of(home: Path) -> Settings:
    return Settings.from_environment({"DREAMSHARD_HOME": str(home)})


def opening(home: Path) -> subprocess.Popen:
    """A process that opens the home and keeps a run in it."""
    return subprocess.Popen([sys.executable, "-c", OPEN_AND_RUN, str(home)])


def copy_of(made: Path, path: Path, schema: str) -> None:
    """Copy a home's database to `path`, as if its tables were of another schema."""
    with closing(sqlite3.connect(made / "mlflow.db")) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
        copy.execute("update alembic_version set version_num = ?", [schema])
        copy.commit()


def num_runs(home: Path) -> int:
    with closing(sqlite3.connect(home / "mlflow.db")) as opened:
        return opened.execute("select count(*) from runs where status = 'FINISHED'").fetchone()[0]


def test_three_at_once_in_a_new_home_where_one_was_killed_all_keep_their_runs(tmp_path: Path):
    killed = opening(tmp_path)
    while not list(tmp_path.glob(".mlflow.db.*.tmp")):
        assert killed.poll() is None
        time.sleep(0.01)
    time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "mlflow.db").exists(), "nobody ever opens a database without all its tables"
    others = [opening(tmp_path) for _ in range(3)]
    assert [process.wait(300) for process in others] == [0, 0, 0]
    assert num_runs(tmp_path) == 3
    assert [path.name for path in tmp_path.glob(".*.tmp*")] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run."""
    home = tmp_path_factory.mktemp("made")
    with runs.chain(settings_of(home), "retrain"):
        pass
    return home


def half_made(home: Path) -> Path:
    """As an earlier release was killed in a migration: a table is there already, and its revision is not noted."""
    with closing(sqlite3.connect(home / "mlflow.db")) as opened, opened:
        opened.execute("create table guardrails (x int)")
        opened.execute("create table experiments (experiment_id int)")
        opened.execute("create table alembic_version (version_num text)")
    return home


def test_a_home_that_was_left_half_made_is_made_again(tmp_path: Path):
    home = half_made(tmp_path)
    with runs.chain(settings_of(home), "retrain"):
        pass
    assert num_runs(home) == 1


def older(made: Path, home: Path, *, wal: bool) -> Path:
    """The database as before MLflow's last migration, whose number alone is undone."""
    with closing(sqlite3.connect(made / "mlflow.db")) as source, closing(sqlite3.connect(home / "mlflow.db")) as copy:
        source.backup(copy)
        copy.execute(f"pragma journal_mode = {'wal' if wal else 'delete'}")
    from alembic import command

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{home / 'mlflow.db'}")
    config = utils._get_alembic_config(str(engine.url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "-1")
    engine.dispose()
    return home


@pytest.mark.parametrize("wal", [False, True])
def test_an_older_home_is_upgraded_with_what_is_in_it_and_kept_as_it_was(made: Path, tmp_path: Path, wal: bool):
    try:
        home = older(made, tmp_path, wal=wal)
    except NotImplementedError:
        pytest.skip("MLflow's last migration cannot be undone")
    before = database.revision(home / "mlflow.db")
    with runs.chain(settings_of(home), "retrain"):
        pass
    assert num_runs(home) == 2
    assert database.revision(home / "mlflow.db") != before
    (kept,) = home.glob("mlflow.db.before-*")
    assert database.revision(kept) == before


def test_what_cannot_be_upgraded_is_said_in_one_sentence_and_not_touched(made: Path, tmp_path: Path):
    path = tmp_path / "mlflow.db"
    copy_of(made, path, "abcdef012345")
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"schema abcdef012345, which MLflow .* does not know, so a newer MLflow"):
        runs.client(settings_of(tmp_path))
    with closing(sqlite3.connect(path)) as opened:
        assert path.read_bytes() == content
        opened.execute(
            "update alembic_version set version_num = '451aebb31d03'"
        )  # MLflow's first: all tables are there
        opened.commit()
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"cannot be upgraded .* it is unchanged: restore an earlier copy"):
        runs.client(settings_of(tmp_path))
    assert path.read_bytes() == content
    path.write_text("no database" * 100)
    with pytest.raises(ValueError, match="cannot be read as MLflow's database"):
        runs.client(settings_of(tmp_path))


def test_a_database_that_another_program_has_open_is_not_upgraded_under_it(made: Path, tmp_path: Path):
    path = tmp_path / "mlflow.db"
    copy_of(made, path, "451aebb31d03")
    code = "import sys; file = open(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match=f"while process {other.pid} uses it"):
            runs.client(settings_of(tmp_path))
        other.communicate(b"\n")
