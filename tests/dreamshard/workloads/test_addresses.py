"""Where sources are: a source is known by what it is, however it is spelt; stores may not answer."""

import pytest

from dreamshard.workloads import known_as


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
