"""A command ends the runs that a killed one left as running."""

from mlflow import MlflowClient

from storage.mlflow_store import process_tags, runs
from storage.settings import Settings


def test_the_next_command_of_any_kind_ends_runs_of_a_killed_one(tmp_path, dreamshard):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    with runs.chain(settings, "retrain") as run:
        runs.set_tags(settings, run, {process_tags.PROCESS: "1 0"})  # number 1 began at another time
        assert dreamshard("models", home=tmp_path).returncode == 0
        assert MlflowClient(settings.tracking_uri).get_run(run).info.status == "KILLED"
