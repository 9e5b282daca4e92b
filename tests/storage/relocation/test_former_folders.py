"""Homes of earlier releases, whose folders were called `column=value`."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from storage.lake import catalog
from storage.lake.parquet_files import partition
from storage.relocation import settling
from storage.settings import Settings
from storage.store import open_store
from tests.helpers.lake import append_samples
from tests.helpers.samples import four_tables, make_sample
from tests.storage.relocation.test_settling import HOLD

VERSION = dataset_version(four_tables())
FORMER = (f"lake/cost_samples/testbed=_mine/dataset_version={VERSION}", f"lake/tables/dataset_version={VERSION}")
NOW = (f"lake/cost_samples/%5Fmine/{VERSION}", f"lake/tables/{VERSION}")


def opened(home: Path) -> Settings:
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)})).settings


def close_all() -> None:
    """As if the processes that opened homes had ended."""
    while settling._held:
        os.close(settling._held.popitem()[1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With one sample, in folders that are called as earlier releases did."""
    home = tmp_path / "home"
    lake, tables = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)})).lake, four_tables()
    lake.write_dataset(tables, VERSION, "by hand")
    task = PlacementTask(tables, 2, 10**6, name="train-000")
    append_samples(lake, [make_sample(task, [1, 0, 0, 1])], "run", 1, VERSION)
    (testbed,) = (home / "lake" / "cost_samples").iterdir()
    testbed.rename(testbed.with_name("%5Fmine"))
    for former, now in zip(FORMER, NOW, strict=True):
        (home / former).parent.mkdir(parents=True, exist_ok=True)
        (home / now).rename(home / former)
    (home / "lake" / "cost_samples" / "%5Fmine").rmdir()
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        database.execute("create table datasets (dataset_source text)")
        database.execute("insert into datasets values (?)", (json.dumps({"uri": str(home / FORMER[1]), "a": "b=c"}),))
    close_all()
    return home


def test_the_first_opening_renames_them_and_what_mlflow_says_of_them(home, caplog):
    before = [path.name for path in sorted((home / "lake").rglob("*.parquet"))]
    settings = opened(home)
    assert [message.partition(" folders of ")[0] for message in caplog.messages] == ["3"]
    assert not list((home / "lake").rglob("*=*"))
    assert [path.name for path in sorted((home / "lake").rglob("*.parquet"))] == before
    assert len(pd.read_parquet(home / "lake" / "cost_samples")) == 2
    assert partition(settings.lake_root / "tables", dataset_version=VERSION) == home / NOW[1]
    assert catalog.query(settings, "select distinct testbed, dataset_version from cost_samples")[0] == {
        "testbed": "_mine",
        "dataset_version": VERSION,
    }
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        ((source,),) = database.execute("select dataset_source from datasets")
    assert json.loads(source) == {"uri": str(home / NOW[1]), "a": "b=c"}
    opened(home)
    assert len(caplog.messages) == 1


def test_folders_of_both_names_become_one_with_the_later_file(home):
    both = home / NOW[1]
    both.mkdir()
    (both / "tables.parquet").write_bytes(b"earlier")
    (both / "other.parquet").write_bytes(b"other")
    os.utime(both / "tables.parquet", (1, 1))
    later = (home / FORMER[1] / "tables.parquet").read_bytes()
    opened(home)
    assert {path.name: path.read_bytes() for path in both.iterdir()} == {
        "tables.parquet": later,
        "other.parquet": b"other",
    }


def test_nothing_is_renamed_while_another_program_uses_the_home(home):
    command = [
        sys.executable,
        "-c",
        f"from storage.relocation import former_folders as f; f.found = lambda _: []{HOLD}",
    ]
    with subprocess.Popen([*command, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        opened(home)
        assert all((home / former).is_dir() for former in FORMER)
        opened(home)
        other.communicate("", timeout=60)
    opened(home)  # this process uses it since before, perhaps in another thread
    assert all((home / former).is_dir() for former in FORMER)
    close_all()
    opened(home)
    assert all((home / now).is_dir() for now in NOW)
