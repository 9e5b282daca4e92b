from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.read_only import read_only


def opened(**environ: str) -> Store:
    return open_store(Settings.from_environment(environ))


def test_a_shared_store_holds_all_but_the_homes_own(tmp_path: Path):
    store = opened(DREAMSHARD_HOME=str(tmp_path / "home"), DREAMSHARD_STORE="memory://team/a b")
    shared = (store.lake.root, store.checkpoints, store.evaluations, store.artifact_root)
    names = ("lake", "checkpoints", "evaluations", "mlartifacts")
    assert list(map(str, shared)) == [f"memory://team/a b/{name}" for name in names]
    assert store.catalog_path == tmp_path / "home" / "catalog.duckdb"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect"]


@pytest.mark.parametrize("below", ["", "home"])
def test_a_home_that_is_a_file_or_below_one_is_one_clear_error(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError):
        opened(DREAMSHARD_HOME=str(tmp_path / "file" / below))


def test_a_read_only_home_opens_for_readers(tmp_path: Path):
    settings = opened(DREAMSHARD_HOME=str(tmp_path))
    with read_only(tmp_path):
        assert open_store(settings, reads_only=True) == settings
        with pytest.raises(ValueError):
            open_store(settings)


@pytest.mark.parametrize("address", ["file:///proc/dreamshard", "s3://nobody/x"])
def test_a_store_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, s3_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, address: str
):
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError):
        opened(DREAMSHARD_HOME=str(tmp_path), DREAMSHARD_STORE=address)
