"""Without a registry, nothing imports MLflow."""

from storage.mlflow_store.presence import may_have_versions
from storage.settings import Settings


def test_a_home_without_a_database_has_no_versions(tmp_path):
    home = {"DREAMSHARD_HOME": str(tmp_path)}
    assert not may_have_versions(Settings.from_environment(home))
    (tmp_path / "mlflow.db").touch()
    assert may_have_versions(Settings.from_environment(home))
    elsewhere = {**home, "MLFLOW_TRACKING_URI": "http://registry:5000"}
    assert may_have_versions(Settings.from_environment(elsewhere))
