"""Homes that were moved, copied, or are used by somebody else."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from storage import relocation
from storage.relocation import settling
from storage.settings import Settings
from storage.store import open_store

HOLD = """
import sys
from storage.settings import Settings
from storage.store import open_store
open_store(Settings.from_environment({"DREAMSHARD_HOME": sys.argv[1]}))
print("open", flush=True)
sys.stdin.read()
"""


def opened(home: Path, **environ: str) -> Settings:
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home), **environ})).settings


def make_home(home: Path) -> Path:
    """A home as a run leaves it, as far as its addresses go."""
    settings = opened(home)
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        database.execute("create table experiments (name text, artifact_location text, id integer)")
        database.execute("create table runs (artifact_uri text, bytes blob)")
        location = f"{settings.artifact_root}/dreamshard"
        database.execute("insert into experiments values ('dreamshard', ?, 1)", (location,))
        database.executemany("insert into runs values (?, ?)", [(f"{location}/{i}", bytes(home)) for i in range(3)])
        database.execute("insert into runs values ('s3://bucket/run', null)")
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database, database:
        database.execute("create table task_run_state (data text)")
        database.execute("insert into task_run_state values (?)", (json.dumps({"storage_key": f"{home}/results/1"}),))
        database.execute("create table log (message text)")
        database.execute("insert into log values (?)", (f"wrote {home}/x",))
    (home / "mlartifacts" / "dreamshard").mkdir(parents=True)
    model = home / "mlartifacts" / "dreamshard" / "MLmodel"
    model.write_text(f"artifact_path: {location}/m\n")
    os.utime(model, (1, 1))
    (home / "schedule.json").write_text(json.dumps({"source": f"{home}/tables.csv", "batches": None}))
    (home / "lake" / "part.parquet").write_bytes(bytes(home))
    return home


def values(database: Path, query: str) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute(query)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bytes_of(home: Path) -> bytes:
    return str(home).encode()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = make_home(tmp_path / "home")
    while settling._held:  # as if the process that made it had ended
        os.close(settling._held.popitem()[1])
    return made


def check_addresses(home: Path) -> None:
    location = (home / "mlartifacts" / "dreamshard").as_uri()
    assert values(home / "mlflow.db", "select artifact_location from experiments") == [location]
    runs = [f"{location}/{i}" for i in range(3)]
    assert values(home / "mlflow.db", "select artifact_uri from runs") == [*runs, "s3://bucket/run"]
    key = "select json_extract(data, '$.storage_key') from task_run_state"
    assert values(home / "prefect" / "prefect.db", key) == [f"{home}/results/1"]
    assert (home / "mlartifacts" / "dreamshard" / "MLmodel").read_text() == f"artifact_path: {location}/m\n"
    assert json.loads((home / "schedule.json").read_text()) == {"source": f"{home}/tables.csv", "batches": None}


@pytest.mark.parametrize("name", ["new", "home/below", 'with space, 100% é "quoted" \'n #1'])
def test_a_copy_names_itself_once_says_so_and_leaves_the_original_alone(home, tmp_path, caplog, name):
    copy = tmp_path / "elsewhere" / name
    (home / "up.json").write_text('{"pid": 1}')  # of the original's servers
    before = contents(home)
    shutil.copytree(home, copy)
    settings = opened(copy)
    check_addresses(copy)
    said = f"home was copied from {home} to {copy}; 7 addresses rewritten in the copy, the original was not touched"
    assert caplog.messages == [said]
    assert (copy / "mlartifacts" / "dreamshard" / "MLmodel").stat().st_mtime == 1
    assert values(copy / "prefect" / "prefect.db", "select message from log") == [f"wrote {home}/x"]
    assert (copy / "lake" / "part.parquet").read_bytes() == before["lake/part.parquet"]
    opened(copy)
    assert caplog.messages == [said]
    assert contents(home) == before
    assert relocation.check(settings)[0]
    with closing(sqlite3.connect(copy / "mlflow.db")) as database, database:  # as `up` of a new home has it
        database.execute("update experiments set artifact_location = ?", [f"{settings.artifact_root}/1"])
    assert relocation.check(settings)[0]
    assert not (copy / "up.json").exists()


def test_a_home_that_was_moved_and_moved_back_names_itself(home, tmp_path):
    for folder in (tmp_path / "b", tmp_path / "c", home):
        last = next(path for path in (home, tmp_path / "b", tmp_path / "c") if path.exists())
        last.rename(folder)
        opened(folder)
        check_addresses(folder)


def test_a_home_made_before_there_was_a_record_is_known_by_its_experiment_or_its_results(home, tmp_path):
    (home / "home.json").unlink()
    opened(home)
    assert json.loads((home / "home.json").read_text())["home"] == str(home)
    (home / "home.json").unlink()
    first = home.rename(tmp_path / "first")
    opened(first)
    check_addresses(first)
    (first / "home.json").unlink()
    with closing(sqlite3.connect(first / "mlflow.db")) as database, database:
        database.execute("update experiments set artifact_location = 'mlflow-artifacts:/1'")  # of a server
        database.execute("update runs set artifact_uri = 'mlflow-artifacts:/1/2'")
    second = first.rename(tmp_path / "second")
    opened(second)
    key = "select json_extract(data, '$.storage_key') from task_run_state"
    assert values(second / "prefect" / "prefect.db", key) == [f"{second}/results/1"]


def test_another_name_for_the_same_folder_is_no_move_but_is_rewritten_when_it_moves(home, tmp_path, caplog):
    link = tmp_path / "link"
    link.symlink_to(home)
    opened(link)
    opened(home)
    assert caplog.messages == []
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        database.execute("update runs set artifact_uri = replace(artifact_uri, ?, ?)", (str(home), str(link)))
    moved = home.rename(tmp_path / "moved")
    link.unlink()
    opened(moved)
    check_addresses(moved)


def test_a_home_that_a_program_still_uses_under_its_old_name_is_left_alone(home, tmp_path):
    command = [sys.executable, "-c", HOLD, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        moved = home.rename(tmp_path / "moved")
        before = contents(moved)
        with pytest.raises(
            ValueError, match=rf"while a program still uses it \(process {other.pid}\).* end that program"
        ):
            opened(moved)
        assert contents(moved) == before
        other.communicate("", timeout=60)
    opened(moved)
    check_addresses(moved)


def test_programs_that_open_a_moved_home_at_once_rewrite_it_once(home, tmp_path):
    moved = home.rename(tmp_path / "moved")
    command = [sys.executable, "-c", HOLD, str(moved)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    others = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]
    said = [other.communicate("", timeout=120) for other in others]
    assert [out for out, _ in said] == ["open\n"] * 3, said
    assert "".join(err for _, err in said).count("home was moved") == 1
    check_addresses(moved)


def test_a_home_whose_databases_cannot_be_rewritten_is_one_sentence_and_is_tried_again(home, tmp_path):
    moved = home.rename(tmp_path / "moved")
    database = (moved / "mlflow.db").read_bytes()
    (moved / "mlflow.db").write_bytes(b"damaged" * 100)
    with pytest.raises(ValueError, match=r"cannot be rewritten \(file is not a database\).*or move it back"):
        opened(moved)
    (moved / "mlflow.db").write_bytes(database)
    opened(moved)
    check_addresses(moved)


@pytest.mark.parametrize("content", [b'{"home": ', b"\xff\xfe", b"", b"[]", b'{"home": 1, "also": []}'])
def test_a_damaged_record_is_one_sentence(home, content):
    (home / "home.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"home.json is damaged .* remove the file"):
        opened(home)


def test_a_store_elsewhere_keeps_its_addresses_and_the_doctor_sees_where_files_go(home, tmp_path):
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        database.execute("update experiments set artifact_location = 'file:///data/team/mlartifacts/dreamshard'")
    moved = home.rename(tmp_path / "moved")
    settings = opened(moved, DREAMSHARD_STORE=str(tmp_path / "store"))
    location = ["file:///data/team/mlartifacts/dreamshard"]
    assert values(moved / "mlflow.db", "select artifact_location from experiments") == location
    is_right, found, advice = relocation.check(settings)
    assert not is_right
    assert location[0] in found
    assert "DREAMSHARD_STORE" in advice


def test_a_home_that_is_not_there_is_not_made(tmp_path):
    relocation.settle(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
