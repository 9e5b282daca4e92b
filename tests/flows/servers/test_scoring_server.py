"""The scoring server as it runs: a placement, limits, a login, no pages."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dreamshard.trained import save_placer
from flows.servers.scoring_limits import RequestLimits
from flows.servers.scoring_server import scoring_server
from storage.mlflow_store import registration, registry, runs
from storage.settings import Settings
from storage.store import open_store
from tests.helpers.trained import learnt_placer

pytestmark = pytest.mark.server
LOGIN = ("team", "a-password")
TABLE = {"name": "t", "rows": 1000, "dim": 16, "pooling_factor": 2.0}


@pytest.fixture(scope="module")
def settings_and_version(tmp_path_factory) -> tuple[Settings, str]:
    return registered(tmp_path_factory.mktemp("scoring"))


def registered(folder: Path) -> tuple[Settings, str]:
    """A home in the folder, with one version."""
    settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(folder / "home")})).settings
    save_placer(learnt_placer(), folder / "placer")
    with runs.chain(settings, "test") as run:
        version = registration.register_placer(settings, folder / "placer", run)
    registry.tag(settings, version, {"champion_of": "a machine", "provisional": "+4.3 %"})
    return settings, version


@pytest.fixture(scope="module")
def address(settings_and_version) -> Iterator[str]:
    settings, version = settings_and_version
    limits = RequestLimits(requests=2, search_s=0.004)
    with scoring_server(settings, version, limits=limits, login=":".join(LOGIN)) as (url, _):
        yield url


def asked(address: str, count: int, **more) -> httpx.Response:
    request = {"num_devices": 2, "memory_gb": 1, "tables": [TABLE]}
    return httpx.post(f"{address}/invocations", json={"inputs": [request] * count}, timeout=60, **more)


def test_it_places_for_those_who_log_in(address):
    answer = asked(address, 2, auth=LOGIN)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == 2
    provisional = "version 1 is provisional: not yet shown to be cheaper than a rule of thumb (+4.3 %)"
    assert all(provisional in plan["warning"] for plan in answer.json()["predictions"])
    assert asked(address, 1).status_code == 401
    assert asked(address, 1, auth=("team", "wrong")).status_code == 401


def test_it_refuses_what_would_hold_it_up(address):
    answer = asked(address, 3, auth=LOGIN)
    assert answer.status_code == 422
    assert "3 requests, more than 2" in answer.json()["error"]


def test_a_search_that_the_time_limit_cut_is_answered_with_the_best_plan_and_says_so(address):
    tables = [TABLE | {"name": str(t), "rows": 1000 + t} for t in range(60)]
    request = {"num_devices": 4, "memory_gb": 1, "tables": tables}
    answer = httpx.post(f"{address}/invocations", json={"inputs": [request]}, timeout=60, auth=LOGIN)
    assert answer.status_code == 200, answer.text
    [plan] = answer.json()["predictions"]
    assert re.search(r"time limit of \S+ s cut the search", plan["warning"])
    assert {shard["table"] for shard in plan["shards"]} == {table["name"] for table in tables}


def test_it_has_no_pages_and_says_to_everyone_that_it_runs(address):
    assert httpx.get(f"{address}/docs", auth=LOGIN).status_code == 404
    assert httpx.get(f"{address}/health").status_code == 200


def test_a_version_whose_files_were_changed_is_not_served(tmp_path):
    settings, version = registered(tmp_path)
    [weights] = (tmp_path / "home" / "mlartifacts").rglob("weights.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (weights.parent / "digests.json").unlink()
    with pytest.raises(ValueError, match="is not the one that was saved"), scoring_server(settings, version):
        pytest.fail("it was served")


def test_a_version_whose_code_was_changed_is_not_run(tmp_path):
    settings, version = registered(tmp_path)
    [code] = (tmp_path / "home" / "mlartifacts").rglob("placer_model.py")
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{code.read_text()}")
    with (
        pytest.raises(ValueError, match="files of version 1 are not those that were registered"),
        scoring_server(settings, version),
    ):
        pytest.fail("it was served")
    assert not (tmp_path / "ran").exists()


def test_a_port_that_is_taken_on_its_own_interface_is_left_to_whom_it_belongs(settings_and_version):
    settings, version = settings_and_version
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        taken = other.getsockname()[1]
        with scoring_server(settings, version, host="127.0.0.2", port=taken) as (url, _):
            assert not url.endswith(f":{taken}")
            assert httpx.get(f"{url}/health").status_code == 200
