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


def test_telemetry_is_off_unless_the_caller_said_otherwise():
    environment = {"DO_NOT_TRACK": "0"}
    quiet_environment(environment)
    assert environment["DO_NOT_TRACK"] == "0"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
