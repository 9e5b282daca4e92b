"""Trainings merge small files by themselves where there are many, and never fail for it."""

import logging
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.tasks import compacting
from storage.filesystem import parse_address
from storage.lake import Lake, compaction, readers
from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.many_samples import write_sample_files

MANY = 6


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.setattr(compaction, "MANY_FILES", MANY)
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)}))


def files_after_merging(store: Store, folder: Path) -> int:
    with disable_run_logger():
        compacting.merge_small_files(store)
    return len(list(folder.iterdir()))


def test_files_are_merged_once_there_are_many_and_none_before(store: Store):
    folder = write_sample_files(store.lake, MANY)
    last = max(folder.iterdir())
    spare = last.rename(store.lake.root / "spare")
    assert files_after_merging(store, folder) == MANY - 1
    spare.rename(last)
    assert files_after_merging(store, folder) == 1
    assert len(store.lake.read_cost_samples()) == MANY


def test_a_lake_without_samples_has_nothing_to_merge(store: Store):
    assert compaction.compact_where_many(store.lake) == []


def test_a_failure_is_a_warning_and_leaves_the_files(store: Store, monkeypatch: pytest.MonkeyPatch, caplog):
    folder = write_sample_files(store.lake, MANY)
    monkeypatch.setattr(compacting, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(compacting, "compact_where_many", lambda lake: compaction.compact_where_many(lake, wait_s=0.1))
    with readers.reading(store.lake.root):
        compacting.merge_small_files(store)
    assert "were not merged" in caplog.text
    assert "read without a pause" in caplog.text
    assert len(list(folder.iterdir())) == MANY


def test_a_bucket_is_not_even_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    root = parse_address("memory://bucket/lake", "the test")

    def listed(*_given, **_more):
        raise AssertionError("listed")

    for name in ("find", "glob", "ls"):
        monkeypatch.setattr(type(root.fs), name, listed)
    assert compaction.compact_where_many(Lake(root, tmp_path)) == []
