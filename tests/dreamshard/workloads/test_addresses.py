"""Where sources are: a source is known by what it is, however it is spelt; stores may not answer."""

import socket
from collections.abc import Iterator

import pytest
from s3fs import S3FileSystem

from dreamshard.workloads import change_token, known_as


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    for name in ("tables.csv", "two words.csv", "mlperf-dlrm-dcnv2"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "spelt", ["tables.csv", "./tables.csv", "tables/../tables.csv", "~/tables.csv", " tables.csv "]
)
def test_spellings_of_a_path_are_one(folder, spelt):
    assert known_as(spelt) == known_as(str(folder / "tables.csv")) == f"{folder}/tables.csv"


def test_so_are_addresses_of_files_and_folders_with_and_without_a_last_slash(folder):
    assert known_as(f"file://{folder}/tables.csv") == f"{folder}/tables.csv"
    assert known_as(f"file://{folder}/two%20words.csv") == known_as("two words.csv") == f"{folder}/two words.csv"
    assert known_as("tables/") == known_as("tables") == f"{folder}/tables"
    assert known_as("s3://bucket/tables/") == known_as("S3://bucket/tables") == "s3://bucket/tables"
    assert known_as("s3://Bucket/a") != known_as("s3://bucket/a")


def test_a_bundled_name_stays_one_unless_it_is_spelt_as_a_path(folder):
    assert known_as("mlperf-dlrm-dcnv2") == "mlperf-dlrm-dcnv2"
    assert known_as("./mlperf-dlrm-dcnv2") == f"{folder}/mlperf-dlrm-dcnv2"
    assert known_as("mlperf-dlrm") == "mlperf-dlrm", "which is no file: an error names it as it was typed"


def test_a_function_is_known_by_its_file_or_its_module(folder):
    assert known_as("model.py:make") == known_as("./model.py:make") == f"{folder}/model.py:make"
    assert known_as("package.model:make") == "package.model:make"


@pytest.fixture
def endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 endpoint at a port of this machine where nobody listens; tried once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # taken, but not listening
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        given = {"ENDPOINT_URL_S3": address, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "MAX_ATTEMPTS": "1"}
        for name, value in given.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setattr(S3FileSystem, "retries", 1)
        S3FileSystem.clear_instance_cache()
        yield address
        S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("source", ["s3://tables/", "s3://tables/list.csv"])
def test_a_bucket_that_cannot_be_reached_is_one_sentence(endpoint_that_is_down: str, source: str):
    with pytest.raises(
        ValueError, match=f"^{source} cannot be read .*{endpoint_that_is_down}.*check the address"
    ) as found:
        change_token(source)
    assert "no tables to ingest" in str(found.value)
    assert "\n" not in str(found.value)
