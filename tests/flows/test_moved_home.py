"""A home that is copied or moved is used as before, and a copy leaves its original alone."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """Every file with a digest of its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def typed(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    """A command as one types it: a process of its own, with the home's own Prefect."""
    others = ("PREFECT_HOME", "PREFECT_LOCAL_STORAGE_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    command = [sys.executable, "-m", "flows.cli.app", *arguments, "--home", str(home)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def addresses(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        rows = database.execute("select artifact_uri from runs union select storage_location from model_versions")
        return {row[0] for row in rows}


def test_a_copy_trains_promotes_and_places_by_itself_and_so_does_what_is_moved(finished, tmp_path, monkeypatch):
    before, copy, tables = digests(finished), tmp_path / "a copy, 100% of it", tmp_path / "tables.csv"
    shutil.copytree(finished, copy)
    tables.write_text("name,rows,dim,pooling_factor\nusers,1000000,64,1\nitems,200000,64,12.5\n")
    place = ("place", str(tables), "--devices", "2", "--memory-gb", "1", "--placer")
    done = typed(copy, *place, "1")
    assert f"home was copied from {finished} to {copy}; " in done.stderr
    assert {shard["table"] for shard in json.loads(done.stdout)["shards"]} == {"users", "items"}
    done = typed(copy, "run", "--recipe", "smoke", "--testbed", "simulated", "--seed", "1", "--json")
    assert "home was moved" not in done.stderr
    assert json.loads(done.stdout)["version"] == "2"
    assert "champion" in typed(copy, "promote", "2").stdout
    count = "select count(distinct run_key) as trainings from cost_samples where iteration > 0"
    assert json.loads(typed(copy, "sql", count, "--json").stdout) == [{"trainings": 2}]
    assert digests(finished) == before, "the original was changed"
    assert all(address.startswith(copy.as_uri()) for address in addresses(copy))
    assert (copy / "mlartifacts" / "dreamshard").is_dir()

    moved = copy.rename(tmp_path / "moved")
    monkeypatch.setenv("DREAMSHARD_HOME", str(moved))
    from storage.mlflow_store.registry import load_placer

    assert load_placer("champion") is not None
    assert not copy.exists()
    assert all(address.startswith(moved.as_uri()) for address in addresses(moved))
    (version,) = (each for each in json.loads(typed(moved, "models", "--json").stdout) if each["version"] == "2")
    assert "champion" in version["aliases"]
