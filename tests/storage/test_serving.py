"""A version behind MLflow's own server, as anyone would start it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from stored_instances import columns_of

from storage import registry, runs
from storage.settings import Settings, quiet_environment

pytestmark = pytest.mark.server


@pytest.fixture
def address(mlflow_settings: Settings, placer_folder: Path) -> Iterator[str]:
    with runs.chain(mlflow_settings, "retrain") as run:
        version = registry.register_placer(mlflow_settings, placer_folder, run)
    registry.set_alias(mlflow_settings, version, "champion", "the only one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": mlflow_settings.tracking_uri,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # mlflow calls uvicorn by name
    }
    quiet_environment(environment)
    command = [
        *(sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/dreamshard@champion"),
        *("--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)),
    ]
    log = mlflow_settings.home / "serve.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/ping", server, log)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        family = [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]
        for member in family:
            member.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            member.kill()
        server.wait()


def wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        try:
            server.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text())


def test_the_champion_places_over_http_and_wrong_input_is_answered_with_400_that_names_the_field(address: str):
    tables = [
        {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 12.5},
        {"name": "items", "rows": 1000, "dim": 8, "pooling_factor": 3},
    ]
    room = {"num_devices": 2, "memory_gb": 4}
    answer = httpx.post(address, json={"dataframe_records": tables, "params": room}, timeout=30)
    assert answer.status_code == 200
    placed = answer.json()["predictions"]
    assert columns_of(placed) == {"users": list(range(64)), "items": list(range(8))}
    assert all(row["device"] in (0, 1) and row["device_ms"] <= row["overall_ms"] for row in placed)

    for change, params, named in [
        ({}, {}, "num_devices"),
        ({}, room | {"num_devices": "two"}, "num_devices"),
        ({}, room | {"memory_gb": 0.001}, "'users'"),
        ({"dim": 63}, room, "dim is 63"),
        ({"rows": "many"}, room, "rows"),
        ({"pooling_factor": -1}, room, "pooling_factor"),
    ]:
        records = [tables[0] | change, tables[1]]
        refused = httpx.post(address, json={"dataframe_records": records, "params": params}, timeout=30)
        assert refused.status_code == 400, refused.text
        assert named in refused.json()["message"]
    without_rows = [{name: value for name, value in tables[0].items() if name != "rows"}]
    refused = httpx.post(address, json={"dataframe_records": without_rows, "params": room}, timeout=30)
    assert refused.status_code == 400
    assert "missing inputs ['rows']" in refused.json()["message"]
