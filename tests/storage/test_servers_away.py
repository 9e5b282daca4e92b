"""A server that does not answer is named, with its address and what to do."""

import socket

import httpx
import pytest

from flows.servers.processes import free_port
from storage import servers_away
from storage.servers_away import away


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    return f"http://127.0.0.1:{free_port(0)}"


def raised(call) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of whichever library
        call()
    return caught.value


def test_prefects_server_is_named_where_the_environment_has_one(nobody):
    error = raised(lambda: httpx.get(f"{nobody}/api/health"))
    said = away(error, {"PREFECT_API_URL": f"{nobody}/api"})
    assert said is not None
    assert said.startswith(f"Prefect's server at {nobody}/api does not answer")
    assert said.endswith("give the same command again")
    wrapped = RuntimeError("the run failed")
    wrapped.__cause__ = error
    assert away(wrapped, {"PREFECT_API_URL": f"{nobody}/api"}) == said
    assert away(error, {}) is None, "without an address it is this process's own"


def test_mlflows_server_is_named(nobody, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    error = raised(lambda: MlflowClient(nobody, nobody).search_experiments())
    said = away(error, {"MLFLOW_TRACKING_URI": nobody})
    assert said is not None
    assert said.startswith(f"MLflow's server at {nobody} does not answer")
    assert away(error, {"MLFLOW_TRACKING_URI": "sqlite:///x.db"}) is None


def test_other_errors_are_nobodys(nobody):
    everything = {"PREFECT_API_URL": nobody, "MLFLOW_TRACKING_URI": nobody}
    assert away(ValueError("5 is too many"), everything) is None
    assert away(ConnectionError("the S3 store does not answer"), everything) is None


def test_a_command_checks_at_its_start_that_the_servers_listen(nobody, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(servers_away.ServerAwayError, match=r"MLflow's server at .* nothing was started") as raised:
        servers_away.check({"MLFLOW_TRACKING_URI": nobody}, wait_s=0.1)
    assert away(raised.value, {}) == str(raised.value)
    with pytest.raises(servers_away.ServerAwayError, match=r"Prefect's server at .*PREFECT_API_URL"):
        servers_away.check({"PREFECT_API_URL": f"{nobody}/api"}, wait_s=0.1)
    servers_away.check({"MLFLOW_TRACKING_URI": "sqlite:///x.db"}, wait_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = f"http://127.0.0.1:{listening.getsockname()[1]}"
        servers_away.check({"MLFLOW_TRACKING_URI": there, "PREFECT_API_URL": f"{there}/api"}, wait_s=0.1)
