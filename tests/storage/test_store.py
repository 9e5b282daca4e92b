from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.read_only import read_only


def opened(**environ: str) -> Store:
    return open_store(Settings.from_environment(environ))


def test_opening_a_store_creates_the_folders_of_its_home(tmp_path: Path):
    store = opened(DREAMSHARD_HOME=str(tmp_path / "deep" / "home"))
    assert store.lake.root.is_dir()
    assert store.checkpoints.is_dir()
    assert (store.settings.home / "prefect").is_dir()


def test_a_store_of_its_own_holds_what_a_team_shares_and_the_home_the_rest(tmp_path: Path):
    store = opened(DREAMSHARD_HOME=str(tmp_path / "home"), DREAMSHARD_STORE="memory://team/a b")
    shared = (store.lake.root, store.checkpoints, store.evaluations)
    assert [str(folder) for folder in shared] == [
        f"memory://team/a b/{name}" for name in ("lake", "checkpoints", "evaluations")
    ]
    assert store.settings.artifact_root == "memory://team/a b/mlartifacts"
    assert store.settings.catalog_path == tmp_path / "home" / "catalog.duckdb"
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["prefect"]


@pytest.mark.parametrize("below", ["", "home"])
def test_a_home_that_is_a_file_or_below_one_is_one_clear_error(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .* point DREAMSHARD_HOME"):
        opened(DREAMSHARD_HOME=str(tmp_path / "file" / below))


def test_a_home_that_may_only_be_read_opens_for_those_who_only_read(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    open_store(settings)
    with read_only(tmp_path):
        assert open_store(settings, reads_only=True).settings == settings
        with pytest.raises(ValueError, match=r"cannot be written \(Read-only file system\), so nothing could be kept"):
            open_store(settings)


def test_a_folder_that_cannot_be_shared_is_one_clear_error(tmp_path: Path):
    with pytest.raises(ValueError, match=r"/proc/dreamshard cannot be written .*point DREAMSHARD_STORE elsewhere"):
        opened(DREAMSHARD_HOME=str(tmp_path), DREAMSHARD_STORE="file:///proc/dreamshard")


def test_a_bucket_that_is_not_there_is_one_clear_error(
    tmp_path: Path, s3_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"s3://nobody/x cannot be written \(.*bucket.*\).*credentials and the endpoint"
    ):
        opened(DREAMSHARD_HOME=str(tmp_path), DREAMSHARD_STORE="s3://nobody/x")
