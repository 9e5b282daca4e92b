from dataclasses import replace
from itertools import pairwise

from storage import mlflow_server
from storage.settings import Settings


def test_the_server_listens_on_the_loopback_only_with_one_worker(settings: Settings):
    command = mlflow_server.command(settings, 5001)
    pairs = dict(pairwise(command))
    assert (pairs["--host"], pairs["--port"], pairs["--workers"]) == ("127.0.0.1", "5001", "1")
    assert pairs["--default-artifact-root"] == settings.artifact_root
    assert mlflow_server.environment(settings)["MLFLOW_BACKEND_STORE_URI"] == settings.tracking_uri


def test_on_a_teams_database_files_go_through_the_server_and_no_password_is_in_the_command(settings: Settings):
    team = replace(settings, tracking_uri="postgresql://ada:secret@db/mlflow")
    command = mlflow_server.command(team, 5001)
    assert "--serve-artifacts" in command
    assert "--default-artifact-root" not in command, "files would bypass the server"
    assert "secret" not in " ".join(command)
    assert mlflow_server.environment(team)["MLFLOW_BACKEND_STORE_URI"] == team.tracking_uri
