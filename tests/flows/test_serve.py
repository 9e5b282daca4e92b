"""`dreamshard serve` as anyone would start it: one server for all tests of this file."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dreamshard.model_files import save_placer
from dreamshard.tables import Tables
from dreamshard.training import TrainingConfig, make_placer, start_training
from storage.mlflow_store import alias_changes, registration, runs
from storage.settings import Settings
from storage.store import open_store
from tests.helpers.tables import tables_of

pytestmark = pytest.mark.server

USERS = {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 12.5}
ITEMS = {"name": "items", "rows": 1000, "dim": 8, "pooling_factor": 3}
REQUEST = {"num_devices": 2, "memory_gb": 4, "tables": [USERS, ITEMS]}


class Served:
    """A running `dreamshard serve`: what it printed, its process and its process's children."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process, self.lines = process, [process.stdout.readline().strip() for _ in range(4)]
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        self.url = self.lines[0].split(" answers at ")[1].split(";")[0]
        self.family = psutil.Process(process.pid).children(recursive=True)

    def post(self, *inputs: Any) -> httpx.Response:
        return httpx.post(self.url, json={"inputs": list(inputs)}, timeout=240)


def pool() -> Tables:
    return tables_of(
        [100, 900],
        [8, 16],
        [5.0, 1.0],
        names=("a", "b"),
        batch_size=512,
        bins=[[1 / 17] * 17] * 2,
        unique_rows=[80, 16],
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one version, untrained, which is champion."""
    folder = tmp_path_factory.mktemp("home")
    settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(folder)})).settings
    save_placer(make_placer(start_training(pool(), TrainingConfig(), seed=0)), folder / "placer")
    with runs.chain(settings, "retrain") as run:
        version = registration.register_placer(settings, folder / "placer", run, pool=pool())
    alias_changes.set_alias(settings, version, "champion", "the only one")
    return folder


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-c", "from flows.cli.app import main; main()", "serve", "--port", "5990"],
        env={**os.environ, "DREAMSHARD_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C for it is none for the tests
    )
    server = Served(process)
    yield server
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert not psutil.wait_procs(server.family, timeout=60)[1], "Ctrl-C ends every process"


def columns_of(plan: dict[str, Any]) -> dict[str, list[int]]:
    """The columns of each table that the plan places, in order; one that is placed twice is there twice."""
    columns: dict[str, list[int]] = {}
    for shard in plan["shards"]:
        assert shard["device"] in range(plan["num_devices"])
        columns.setdefault(shard["table"], []).extend(range(shard["column_start"], shard["column_end"]))
    return {name: sorted(found) for name, found in columns.items()}


def test_the_command_that_it_shows_is_answered_with_a_plan_of_the_version_served(served: Served):
    command = shlex.split(served.lines[2])
    assert command[:3] == ["curl", served.url, "-H"]
    header, _, value = command[3].partition(": ")
    body = command[5]
    answer = httpx.post(served.url, content=body, headers={header: value}, timeout=240)
    assert answer.status_code == 200, answer.text
    (plan,) = answer.json()["predictions"]
    assert plan["placer"] == "dreamshard 1"
    (request,) = json.loads(body)["inputs"]
    assert columns_of(plan) == {table["name"]: list(range(table["dim"])) for table in request["tables"]}
    devices = plan["predicted"]["devices"]
    assert sum(device["memory_bytes"] for device in devices) == sum(4 * t["rows"] * t["dim"] for t in request["tables"])
    assert plan["predicted"]["overall_ms"] == pytest.approx(
        max(sum(ms for name, ms in device.items() if name.endswith("_ms")) for device in devices), abs=1e-3
    )


def test_it_says_that_it_is_well_and_listens_on_the_loopback_interface(served: Served):
    health = served.lines[0].rpartition(" ")[2]
    assert httpx.get(health).status_code == 200
    assert health.startswith("http://127.0.0.1:")
    listening = {
        address.laddr.ip
        for process in served.family
        for address in process.net_connections()
        if address.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_one_request_may_ask_for_several_placements_and_gets_them_in_order(served: Served):
    answer = served.post(REQUEST, REQUEST | {"num_devices": 3, "devices_per_host": 1, "tables": [ITEMS]})
    first, second = answer.json()["predictions"]
    assert (first["num_devices"], columns_of(first)) == (2, {"users": list(range(64)), "items": list(range(8))})
    assert (second["num_devices"], columns_of(second)) == (3, {"items": list(range(8))})


def test_eight_clients_at_once_each_get_the_plan_of_their_own_tables(served: Served):
    def ask(client: int) -> None:
        for turn in range(3):
            tables = [ITEMS | {"name": f"{client}-{turn}-{t}", "dim": 4 * (client + 1)} for t in range(client + 2)]
            answer = served.post({"num_devices": client + 1, "memory_gb": 1, "budget_ms": 5, "tables": tables})
            assert answer.status_code == 200, answer.text
            (plan,) = answer.json()["predictions"]
            assert plan["num_devices"] == client + 1
            assert columns_of(plan) == {table["name"]: list(range(4 * (client + 1))) for table in tables}

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(ask, range(8)))


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def users(**change: Any) -> dict[str, Any]:
    return REQUEST | {"tables": [USERS | change, ITEMS]}


WRONG = [
    (REQUEST | {"tables": [without(USERS, "rows"), ITEMS]}, "inputs[0].tables[0].rows: Field required"),
    (users(rows="many"), "inputs[0].tables[0].rows: Input should be a valid integer, got 'many'"),
    (users(rows=0), "inputs[0].tables[0].rows: Input should be greater than or equal to 1, got 0"),
    (users(rows=-5), "inputs[0].tables[0].rows: Input should be greater than or equal to 1, got -5"),
    (users(rows=None), "inputs[0].tables[0].rows: Input should be a valid integer, got None"),
    (users(rows=10**30), "inputs[0].tables[0].rows: Input should be less than"),
    (users(dim=63), "inputs[0].tables[0].dim: Input should be a multiple of 4, got 63"),
    (users(pooling_factor=-1), "inputs[0].tables[0].pooling_factor: Input should be greater than or equal to 0"),
    (users(bins=[1.0]), "inputs[0].tables[0].bins: List should have at least 17 items"),
    (users(bins=[0.5] * 17), "inputs[0].tables[0]: bin_0 to bin_16 add up to 8.5"),
    (users(unique_rows=2_000_000), "inputs[0].tables[0]: unique_rows is 2000000"),
    (users(pooling=3), "inputs[0].tables[0].pooling: Extra inputs are not permitted"),
    (users(name="items"), "inputs[0].tables[1]: table 'items' is also at inputs[0].tables[0]"),
    (users(name=" "), "inputs[0].tables[0]: the table has no name"),
    (without(REQUEST, "num_devices"), "inputs[0].num_devices: Field required"),
    (REQUEST | {"num_devices": "2"}, "inputs[0].num_devices: Input should be a valid integer, got '2'"),
    (REQUEST | {"num_devices": 0}, "inputs[0].num_devices: Input should be greater than or equal to 1"),
    (REQUEST | {"devices_per_host": 0}, "inputs[0].devices_per_host: Input should be greater than or equal to 1"),
    (REQUEST | {"devices": 2}, "inputs[0].devices: Extra inputs are not permitted"),
    (without(REQUEST, "memory_gb"), "inputs[0].memory_gb: Field required"),
    (REQUEST | {"memory_gb": 0.001}, "table 'users' of inputs[0] needs 0.0149 GiB in its smallest shard"),
    (REQUEST | {"memory_gb": 0.1}, "the 2 tables of inputs[0] need 0.238 GiB, more than the 0.2 GiB of 2 devices"),
    (
        REQUEST | {"precision": "int4"},
        "inputs[0].precision: Input should be 'fp32', 'fp16', 'bf16' or 'int8', got 'int4'",
    ),
    (REQUEST | {"optimizer": "adamw"}, "inputs[0].optimizer: Input should be 'sgd', 'rowwise_adagrad'"),
    (REQUEST | {"budget_ms": -3}, "inputs[0].budget_ms: Input should be greater than or equal to 0"),
    (REQUEST | {"tables": []}, "inputs[0].tables: List should have at least 1 item"),
    (REQUEST | {"tables": "users"}, "inputs[0].tables: Input should be a valid list"),
    (without(REQUEST, "tables"), "inputs[0].tables: Field required"),
    ("users", "Expected dict, but got str"),
]


@pytest.mark.parametrize(("request_", "named"), WRONG, ids=[named for _, named in WRONG])
def test_what_is_wrong_is_answered_with_400_and_names_the_field(served: Served, request_: Any, named: str):
    refused = served.post(request_)
    assert refused.status_code == 400, refused.text
    assert refused.json()["message"].startswith(named) or type(request_) is str


def test_a_refusal_does_not_repeat_what_was_sent(served: Served):
    for wrong in ({"num_devices": "x" * 100_000}, "x" * 100_000):
        refused = served.post(REQUEST, wrong)
        assert refused.status_code == 400
        assert "xxx" in refused.text
        assert len(refused.text) < 1200
    for body in (b'{"inputs": [' + b"x" * 100_000, b"\xff" * 100_000, b'{"' + b"x" * 100_000 + b'": 1}'):
        refused = httpx.post(served.url, content=body, headers={"Content-Type": "application/json"}, timeout=240)
        assert refused.status_code in {400, 422}
        assert len(refused.text) < 1500


def test_more_tables_than_a_version_takes_are_refused_before_it(served: Served):
    refused = served.post(REQUEST | {"tables": [ITEMS | {"name": str(t)} for t in range(4097)]})
    assert refused.status_code == 422
    assert refused.json()["error"].endswith("place them with `dreamshard place`")


NOT_A_NUMBER = json.dumps({"inputs": [users(pooling_factor=float("nan"))]})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("{inputs: ", "Ensure that input is a valid JSON formatted string"),
        ("[]", "'inputs'"),
        ("{}", "'inputs' key"),
        (json.dumps({"inputs": REQUEST}), "Expected list, but got dict"),
        (json.dumps({"inputs": []}), "inputs is empty"),
        (json.dumps({"inputs": [REQUEST, without(REQUEST, "memory_gb")]}), "inputs[1].memory_gb: Field required"),
        (NOT_A_NUMBER, "inputs[0].tables[0].pooling_factor: Input should be a finite number, got nan"),
    ],
)
def test_a_body_that_is_no_request_is_answered_with_400(served: Served, body: str, named: str):
    refused = httpx.post(served.url, content=body, headers={"Content-Type": "application/json"}, timeout=240)
    assert refused.status_code == 400, refused.text
    assert named in refused.json()["message"]


def test_a_version_that_is_not_there_is_one_sentence(home: Path, shared_dreamshard: Any):
    done = shared_dreamshard("serve", "--version", "7", home=home)
    assert done.returncode == 1
    assert "there is no version '7' of dreamshard" in done.sentence
    assert "version 1 (champion)" in done.sentence
