"""A server that does not answer is named, with its address and what to do."""

import httpx
import pytest

from flows.servers.processes import free_port
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
