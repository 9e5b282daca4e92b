"""The wheel: its lean core places, explains and plans for TorchRec; everything else names the extra to install."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.wheel import PIP, PROJECT, install, make_wheel

LEAN = """
import sys, time
start = time.process_time()
import dreamshard as ds
spent = time.process_time() - start
task = ds.PlacementTask(ds.read_tables("mlperf-dlrm-dcnv2"), num_devices=8, memory_bytes=70 * 2**30)
plan = ds.place(task, "a100")
ds.explain(task, plan, "a100")
blocked = {"prefect", "mlflow", "duckdb", "fastapi", "sqlalchemy"} & set(sys.modules)
assert not blocked, blocked
print(plan.num_devices, round(spent, 1))
"""
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("prefect", "mlflow", "duckdb"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from flows.cli.app import main
main(sys.argv[1:])
"""

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return make_wheel(tmp_path_factory.mktemp("wheel"))


def run(python: Path | str, *words: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"DREAMSHARD_HOME": str(folder / "home"), **environment}
    command = [python, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_an_installed_wheel_places_without_the_pipeline(wheel, tmp_path):
    installed = install(wheel)
    assert not (installed / "tests").exists()

    def command(*words: object):
        return run(sys.executable, "-c", BLOCKED, *words, folder=tmp_path, PYTHONPATH=str(installed))

    target = ("mlperf-dlrm-dcnv2", "--devices", "8", "--hardware", "a100")
    placed = command("place", *target, "--out", "plan.json", "--html", "plan.html")
    assert placed.returncode == 0, placed.stderr
    assert (tmp_path / "plan.html").stat().st_size > 1e4
    figures = json.loads((tmp_path / "plan.json").read_text())["predicted"]
    asked = command("what-if", target[0], "--hardware", "a100:8", "--json")
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)[0]["overall_ms"] == pytest.approx(figures["overall_ms"], abs=1e-3)
    explained = command("explain", "plan.json", target[0], "--json")
    assert explained.returncode == 0, explained.stderr
    assert command("learn", "--help").returncode == 0
    for words in (["learn", tmp_path], ["run"], ["models"], ["doctor"]):
        refused = command(*words)
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1, "one sentence"
        assert "dreamshard[pipeline]" in refused.stderr


@pytest.mark.long  # installs torch
def test_the_lean_wheel_works_in_an_empty_environment(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    for wanted in (["torch==2.13.0"], [str(wheel)]):  # the build for CPUs first, so that pip keeps it
        subprocess.run([python, *PIP, "install", *wanted], check=True, capture_output=True)
    done = run(python, "-c", LEAN, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "8"
    pip = ["install", "--no-deps", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0", "tensordict", "torchmetrics==1.0.3"]
    more = ["pyre-extensions", "typing-inspect", "mypy-extensions", "lightning-utilities", "pyvers", "orjson", "tqdm"]
    more += ["cloudpickle", "importlib-metadata", "zipp", "packaging"]
    subprocess.run([python, *PIP, *pip, *more], check=True, capture_output=True)
    example = PROJECT / "docs/examples/train_dlrm.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    trained = run(python, *launcher, example, "--costs", "a100", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert trained.stdout.count("loss") >= 4
