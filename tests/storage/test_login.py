import asyncio
import os
import stat
from pathlib import Path

import httpx
import pytest

from flows.runtime.environment import prepare
from flows.servers.local_servers import login_for
from storage import login

LOGIN = "ada:s3cret"


def test_servers_of_this_machine_ask_for_no_login_and_others_for_one_that_the_home_keeps(tmp_path: Path):
    assert login_for(tmp_path, "127.0.0.1", {}) is None
    assert login.kept(tmp_path) is None
    made = login_for(tmp_path, "0.0.0.0", {})
    assert made is not None
    assert len(made.partition(":")[2]) >= 20
    assert stat.S_IMODE((tmp_path / "login").stat().st_mode) == 0o600
    assert login_for(tmp_path, "gpu-7.team", {}) == login.kept(tmp_path) == made, "the next start asks for the same"
    assert login_for(tmp_path, "127.0.0.1", {"DREAMSHARD_LOGIN": LOGIN}) == LOGIN
    assert login_for(tmp_path, "0.0.0.0", {"DREAMSHARD_LOGIN": "off"}) is None


@pytest.mark.parametrize("wrong", ["ada", ":s3cret", "ada:", "ada:s3 cret", "ädä:s3cret"])
def test_what_is_no_login_is_refused_without_being_shown(wrong: str):
    with pytest.raises(ValueError, match=r"neither `off` nor NAME:PASSWORD .*; set it to e.g.") as error:
        login.checked(wrong)
    assert "s3" not in str(error.value)


def test_clients_of_both_servers_log_in_with_the_one_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {"DREAMSHARD_LOGIN": LOGIN})
    prepare(tmp_path)
    expected = {
        "PREFECT_API_AUTH_STRING": LOGIN,
        "MLFLOW_TRACKING_USERNAME": "ada",
        "MLFLOW_TRACKING_PASSWORD": "s3cret",
    }
    assert os.environ.items() >= expected.items()
    assert login.client_environment({"PREFECT_API_AUTH_STRING": LOGIN}) == expected, (
        "as Prefect passes it on to containers"
    )
    assert login.client_environment({"DREAMSHARD_LOGIN": "off"}) == login.client_environment({}) == {}


def test_a_server_of_its_own_process_lets_everyone_in_where_the_login_is_off():
    assert login.of_server({"DREAMSHARD_LOGIN": "off"}) is login.of_server({}) is None
    assert login.of_server({"DREAMSHARD_LOGIN": LOGIN}) == LOGIN
    with pytest.raises(SystemExit, match=r"neither `off` nor NAME:PASSWORD"):
        login.of_server({"DREAMSHARD_LOGIN": "team"})


def answered(auth: tuple[str, str] | None, path: str = "/api") -> httpx.Response:
    """What an application behind the login answers."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    async def ask():
        transport = httpx.ASGITransport(app=login.guarded(app, LOGIN, ["/health"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get(path, auth=auth)

    return asyncio.run(ask())


def test_only_those_who_log_in_get_past_the_guard_and_health_checks():
    assert [answered(auth).status_code for auth in (None, ("ada", "s3cre"), ("ada", "s3cret"))] == [401, 401, 200]
    assert answered(None, "/health").text == "inside"
    assert answered(None, "/health/..").status_code == 401


def test_a_refused_login_is_one_sentence_whichever_server_refuses_it():
    from mlflow.exceptions import MlflowException
    from mlflow.utils.rest_utils import verify_rest_response

    response = answered(("ada", "wrong"))
    with pytest.raises(httpx.HTTPStatusError) as prefects:
        response.raise_for_status()
    with pytest.raises(MlflowException) as mlflows:
        verify_rest_response(response, "/api")
    wrapped = RuntimeError("does not answer")
    wrapped.__cause__ = prefects.value
    for error in (prefects.value, wrapped, mlflows.value):
        said = login.refusal(error, {"DREAMSHARD_LOGIN": "ada:wrong"})
        assert said is not None
        assert said.startswith("the server refuses the login of 'ada', so nothing was done; set DREAMSHARD_LOGIN=NAME:")
        assert "wrong" not in said
    unset = login.refusal(mlflows.value, {})
    assert unset is not None
    assert "DREAMSHARD_LOGIN is not set" in unset
    assert login.refusal(ValueError("anything else")) is None
