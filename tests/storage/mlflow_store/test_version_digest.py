"""The files of a version that a server would run, compared with those that were registered."""

import logging
from pathlib import Path

import pytest

from storage.mlflow_store import registration, registry, runs
from storage.mlflow_store.version_digest import check_copy, files_digest
from storage.settings import Settings

CODE = "code/dreamshard/tables.py"
READ = ["placer_model.py", CODE, "MLmodel", "conda.yaml", "artifacts/pool.parquet", "artifacts/placer/config.json"]


@pytest.fixture
def stored(mlflow_settings: Settings, placer_folder: Path, tables) -> Path:
    """The files of version 1 in the store."""
    with runs.chain(mlflow_settings, "retrain") as run:
        registration.register_placer(mlflow_settings, placer_folder, run, pool=tables)
    [description] = (mlflow_settings.home / "mlartifacts").rglob("MLmodel")
    return description.parent


def fetched(settings: Settings) -> Path:
    with registry.version_files(settings, "1") as folder:
        return folder


def test_a_version_is_fetched_whole_and_apart_from_the_store(mlflow_settings: Settings, stored: Path):
    with registry.version_files(mlflow_settings, "1") as folder:
        copied = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert copied == {str(path.relative_to(stored)) for path in stored.rglob("*") if path.is_file()}
        assert copied.issuperset(READ)
        assert not folder.is_relative_to(mlflow_settings.home), "where others may write"
    assert not folder.exists()


def test_a_version_with_a_file_changed_added_or_removed_is_refused(mlflow_settings: Settings, stored: Path):
    for name in READ:
        content = (stored / name).read_bytes()
        (stored / name).write_bytes(content + b"\n")
        with pytest.raises(ValueError, match="files of version 1 are not those that were registered"):
            fetched(mlflow_settings)
        (stored / name).write_bytes(content)
    (stored / CODE).rename(stored / CODE.replace("tables", "tablets"))
    with pytest.raises(ValueError, match="files of version 1 are not"):
        fetched(mlflow_settings)
    (stored / CODE.replace("tables", "tablets")).rename(stored / CODE)
    fetched(mlflow_settings)
    (stored / "code" / "sitecustomize.py").touch()
    with pytest.raises(ValueError, match="files of version 1 are not"):
        fetched(mlflow_settings)


def test_a_version_of_an_earlier_release_is_fetched_with_a_warning(mlflow_settings: Settings, stored: Path, caplog):
    registry.untag(mlflow_settings, "1", registry.FILES_TAG)
    (stored / "placer_model.py").write_text("changed")
    with caplog.at_level(logging.WARNING):
        fetched(mlflow_settings)
    assert "version 1 was registered by an earlier release without a digest of all its files" in caplog.text


def test_only_the_address_at_the_head_of_a_description_may_change(tmp_path: Path):
    before, moved, worse = (tmp_path / name for name in ("before", "moved", "worse"))
    for folder, head in ((before, b"/a"), (moved, b"/b"), (worse, b"/b\nartifact_path: x")):
        folder.mkdir()
        (folder / "MLmodel").write_bytes(b"artifact_path: file://" + head + b"\nflavors: {}\n")
    assert files_digest(before) == files_digest(moved) != files_digest(worse)
    for ending in ("\r", "\x85", "\u2028"):  # which end a line of YAML too
        (worse / "MLmodel").write_bytes(f"artifact_path: file:///b{ending}artifact_path: x\nflavors: {{}}\n".encode())
        assert files_digest(worse) != files_digest(before)
    (moved / "registered_model_meta").touch()
    check_copy(moved, "1", files_digest(before))
    assert not (moved / "registered_model_meta").exists(), "which the store may have had"
