from pathlib import Path

import pytest

from storage.settings import Settings, quiet_environment


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_store_may_be_a_folder_and_mlflows_files_elsewhere(tmp_path: Path, form: str):
    environment = {"DREAMSHARD_HOME": str(tmp_path / "home"), "DREAMSHARD_STORE": form.format(tmp_path / "drive")}
    settings = Settings.from_environment(environment | {"DREAMSHARD_ARTIFACTS": "s3://models/dreamshard"})
    assert settings.lake_root == tmp_path / "drive" / "lake"
    assert isinstance(settings.lake_root, Path)
    assert settings.artifact_root == "s3://models/dreamshard"


@pytest.mark.parametrize("address", ["s4://team", "gs://team"])
def test_an_address_that_nothing_installed_reads_is_refused(tmp_path: Path, address: str):
    with pytest.raises(ValueError):
        Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path), "DREAMSHARD_STORE": address})


def test_telemetry_is_off_unless_the_caller_said_otherwise():
    environment = {"DO_NOT_TRACK": "0"}
    quiet_environment(environment)
    assert environment["DO_NOT_TRACK"] == "0"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
