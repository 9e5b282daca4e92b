"""A registered version behind MLflow's own model server, started as docs/serving.md says."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from dreamshard.plan import Plan
from dreamshard.training import TrainingConfig
from flows.forms.options import PlaceOptions
from flows.placing.request import check, place
from storage.mlflow_store import runs
from storage.mlflow_store.registry import load_placer, set_alias
from storage.settings import Settings
from storage.store import open_store
from tests.flows.servers_up import until
from tests.helpers.ports import free_port
from tests.helpers.tables import pool_of
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
TABLES = [
    {"name": "users", "rows": 1_000_000, "dim": 64, "pooling_factor": 12.5},
    {"name": "items", "rows": 1000, "dim": 8, "pooling_factor": 3.0},
]


def test_the_documented_server_plans_as_place_and_python_do(tmp_path: Path):
    store = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path / ".dreamshard")}))
    placer = make_placer(start_training(pool_of(8), TrainingConfig(), seed=0))
    dataset = store.lake.write_dataset(pool_of(8), "by hand")
    made_of = training_of(hardware="simulated a100", num_devices=8, dataset=dataset, source="ads.csv")
    with runs.open_run(store, "retrain") as run:
        version = runs.register_placer(store, placer, run, made_of, pool=pool_of(8))
    set_alias(store, version, "champion", "the only one")
    variable, *command = shlex.split(re.findall(r"^MLFLOW_TRACKING_URI=.*models serve.*$", DOCS.read_text(), re.M)[0])
    name, _, uri = variable.partition("=")
    port = free_port()
    command = [str(port) if word == "5001" else word for word in command]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, name: uri, "PATH": path, "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT": "600"},
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            assert process.poll() is None
            with suppress(httpx.TransportError):
                return httpx.get(f"{address}/health").status_code == 200
            return False

        until(is_up, 300)
        request = {"num_devices": 2, "memory_gb": 1, "tables": TABLES}
        answer = httpx.post(f"{address}/invocations", json={"inputs": [request]}, timeout=240)
        assert answer.status_code == 200, answer.text
        (plan,) = answer.json()["predictions"]
        (tmp_path / "tables.json").write_text(json.dumps(TABLES))
        options = PlaceOptions(tables=str(tmp_path / "tables.json"), devices=2, memory_gb=1)
        checked = check(store, options, print)
        placed = place(store, checked, print)
        assert placed.plan.tables == Plan.model_validate(plan).tables
        assert placed.plan.predicted.overall_ms == plan["predicted"]["overall_ms"]
        assert placed.placement == load_placer("champion", store).place(checked.task)
        assert max(device["memory_bytes"] for device in plan["predicted"]["devices"]) <= 2**30
        refused = httpx.post(f"{address}/invocations", json={"inputs": [request | {"num_devices": 0}]}, timeout=60)
        assert refused.status_code == 400
        assert "num_devices" in refused.text
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
