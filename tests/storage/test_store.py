import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.settings import Settings
from storage.store import Store, open_store


def opened(**environ: str) -> Store:
    return open_store(Settings.from_environment(environ))


def test_a_shared_store_holds_all_but_the_homes_own(tmp_path: Path):
    store = opened(DREAMSHARD_HOME=str(tmp_path / "home"), DREAMSHARD_STORE="memory://team/a b")
    shared = (store.lake.root, store.checkpoints, store.evaluations, store.artifact_root)
    names = ("lake", "checkpoints", "evaluations", "mlartifacts")
    assert list(map(str, shared)) == [f"memory://team/a b/{name}" for name in names]
    assert store.catalog_path == tmp_path / "home" / "catalog.duckdb"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount the folder over itself, for reading only; skips the test where this user or container may not mount."""
    done = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no folder can be mounted here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


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
