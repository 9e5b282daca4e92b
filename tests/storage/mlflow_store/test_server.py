import socket
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from mlflow.server.fastapi_security import init_fastapi_security

from storage.mlflow_store import server
from storage.settings import Settings


def test_the_server_listens_on_the_loopback_only(settings: Settings):
    command = server.command(settings, 5001)
    pairs = dict(pairwise(command))
    assert (pairs["--host"], pairs["--port"]) == ("127.0.0.1", "5001")
    assert pairs["--default-artifact-root"] == settings.artifact_root
    assert server.environment(settings)["MLFLOW_BACKEND_STORE_URI"] == settings.tracking_uri


def test_on_a_teams_database_files_go_through_the_server_and_no_password_is_in_the_command(settings: Settings):
    team = replace(settings, tracking_uri="postgresql://ada:secret@db/mlflow")
    command = server.command(team, 5001)
    assert "--default-artifact-root" not in command, "files would bypass the server"
    assert "secret" not in " ".join(command)
    assert server.environment(team)["MLFLOW_BACKEND_STORE_URI"] == team.tracking_uri


def status_of_a_change(allowed: Mapping[str, str], page: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """What MLflow's own guards say to a page of the address `page` that changes something on the server behind it."""
    for name, value in allowed.items():
        monkeypatch.setenv(name, value)
    app = FastAPI()
    app.post("/ajax-api/2.0/mlflow/runs/update")(lambda: {})
    init_fastapi_security(app)
    answer = TestClient(app, base_url=page).post("/ajax-api/2.0/mlflow/runs/update", headers={"Origin": page})
    return answer.status_code


@pytest.mark.parametrize(
    ("host", "page", "status"),
    [
        ("127.0.0.1", "http://localhost:5001", 200),
        ("127.0.0.1", "http://gpu-7.team:5001", 403),
        ("gpu-7.team", "http://gpu-7.team:5001", 200),
        ("gpu-7.team", "http://evil.example:5001", 403),
        ("0.0.0.0", f"http://{socket.gethostname()}:5001", 200),
        ("0.0.0.0", "http://evil.example:5001", 403),
    ],
)
def test_pages_seen_from_another_machine_may_change_what_they_show_and_strangers_may_not(
    host: str, page: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    assert status_of_a_change(server.browsers(host, 5001, {}), page, monkeypatch) == status


def test_who_may_ask_is_what_the_environment_says_where_it_does():
    given = {"MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "https://mlflow.team"}
    assert server.browsers("0.0.0.0", 5001, given).items() >= given.items()
