import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.settings import Settings, quiet_environment


def test_everything_lies_below_the_home_and_its_folders_exist(tmp_path: Path):
    settings = Settings.load({"DREAMSHARD_HOME": str(tmp_path / "deep" / "home")})
    assert settings.home == tmp_path / "deep" / "home"
    assert settings.lake_root.is_dir()
    assert settings.checkpoints.is_dir()
    assert settings.tracking_uri == f"sqlite:///{tmp_path}/deep/home/mlflow.db"
    assert settings.artifact_root == f"file://{tmp_path}/deep/home/mlartifacts"
    assert settings.catalog_path.parent == settings.home


def test_the_home_is_below_the_current_folder_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert Settings.load({}).home == tmp_path / ".dreamshard"


def test_a_teams_tracking_server_is_used_as_it_is(tmp_path: Path):
    environment = {"DREAMSHARD_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": "http://mlflow.team:5000"}
    assert Settings.load(environment).tracking_uri == "http://mlflow.team:5000"


@pytest.mark.parametrize("below", ["", "home"])
def test_a_home_that_is_a_file_or_below_one_is_one_clear_error(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .* point DREAMSHARD_HOME"):
        Settings.load({"DREAMSHARD_HOME": str(tmp_path / "file" / below)})


def test_a_home_on_a_file_system_that_takes_no_files_is_one_clear_error():
    with pytest.raises(ValueError, match="the home /proc/dreamshard cannot be written"):
        Settings.load({"DREAMSHARD_HOME": "/proc/dreamshard"})  # for root, permission bits would not do


def test_a_store_of_its_own_holds_what_a_team_shares_and_the_home_the_rest(tmp_path: Path):
    environment = {"DREAMSHARD_HOME": str(tmp_path / "home"), "DREAMSHARD_STORE": "memory://team/a b"}
    settings = Settings.load(environment)
    shared = (settings.lake_root, settings.checkpoints, settings.evaluations)
    assert [str(each) for each in shared] == [
        f"memory://team/a b/{name}" for name in ("lake", "checkpoints", "evaluations")
    ]
    assert settings.artifact_root == "memory://team/a b/mlartifacts"
    assert settings.catalog_path == tmp_path / "home" / "catalog.duckdb"
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["prefect"]


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_store_that_is_a_folder_is_used_as_one_and_mlflows_files_may_lie_elsewhere(tmp_path: Path, form: str):
    environment = {"DREAMSHARD_HOME": str(tmp_path / "home"), "DREAMSHARD_STORE": form.format(tmp_path / "drive")}
    settings = Settings.load(environment | {"DREAMSHARD_ARTIFACTS": "s3://models/dreamshard"})
    assert settings.lake_root == tmp_path / "drive" / "lake"
    assert isinstance(settings.lake_root, Path)
    assert settings.artifact_root == "s3://models/dreamshard"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s4://team", r"nothing that is installed here reads s4://.*name a folder or an s3://"),
        ("gs://team", r"nothing that is installed here reads gs://.*[Ii]nstall gcsfs"),
        ("file:///proc/dreamshard", r"/proc/dreamshard cannot be written .*point DREAMSHARD_STORE elsewhere"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_error(tmp_path: Path, address: str, words: str):
    with pytest.raises(ValueError, match=words):
        Settings.load({"DREAMSHARD_HOME": str(tmp_path), "DREAMSHARD_STORE": address})


def test_the_package_that_s3_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(ValueError, match=r"reads s3://.*pip install 'dreamshard\[s3\]'"):
        Settings.load({"DREAMSHARD_HOME": str(tmp_path), "DREAMSHARD_STORE": "s3://team"})


def test_a_bucket_that_is_not_there_is_one_clear_error(
    tmp_path: Path, s3_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"s3://nobody/x cannot be written \(.*bucket.*\).*credentials and the endpoint"
    ):
        Settings.load({"DREAMSHARD_HOME": str(tmp_path), "DREAMSHARD_STORE": "s3://nobody/x"})


def test_telemetry_is_off_unless_the_caller_said_otherwise():
    environment = {"DO_NOT_TRACK": "0"}
    quiet_environment(environment)
    assert environment["DO_NOT_TRACK"] == "0"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
