"""Which process a run is of, and whether it is gone."""

import multiprocessing
import time
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from storage.mlflow_store import process_tags, runs
from storage.settings import Settings


def test_hosts_of_one_name_are_told_apart(tmp_path: Path):
    hosts = set()
    for identity in ("4a1f", "77c0"):
        (tmp_path / identity).write_text(f"{identity}\n")
        hosts.add(process_tags.this_host(tmp_path / identity))
    assert len(hosts) == 2
    assert process_tags.this_host(tmp_path / "absent") not in hosts


def test_a_process_lives_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    own = psutil.Process()
    identity, began = process_tags.identity(own), own.create_time()
    assert process_tags.is_alive(identity)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began - 3600)
    assert process_tags.is_alive(identity)
    pid, *since = identity.split()
    assert not process_tags.is_alive(" ".join([pid, "1", *since[1:]])), "another process of the same number"
    assert not process_tags.is_alive(f"{pid} {began:.0f}"), "as an earlier release wrote it"


def run_for_long(settings: Settings, started: Path) -> None:
    with runs.chain(settings, "retrain"):
        started.touch()
        time.sleep(600)


def test_a_run_of_a_killed_process_is_seen_without_mlflow_even_if_nobody_asked_for_its_end(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    assert not process_tags.any_abandoned(settings)
    runs.client(settings)
    assert not process_tags.any_abandoned(settings)
    killed = multiprocessing.get_context("fork").Process(target=run_for_long, args=(settings, tmp_path / "started"))
    killed.start()
    while not (tmp_path / "started").exists():
        assert killed.is_alive()
        time.sleep(0.05)
    assert not process_tags.any_abandoned(settings)
    killed.kill()
    deadline = time.monotonic() + 20  # and no `join`: it stays as a process that has ended
    while not process_tags.any_abandoned(settings):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runs.end_abandoned(settings)
    assert not process_tags.any_abandoned(settings)
    killed.join()
    (run,) = MlflowClient(settings.tracking_uri).search_runs(["1"])
    assert (run.info.status, run.data.tags["error"].startswith("its process ended")) == ("KILLED", True)
