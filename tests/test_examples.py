"""The tutorial runs, and so does the example of docs/torchrec.md, under a plan file and under the planner."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ports import free_port

pytest.importorskip("torchrec")

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROJECT = Path(__file__).parents[1]
EXAMPLE = "docs/examples/train_dlrm.py"


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(*options: str) -> list[str]:
    """What the example printed on two ranks."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    return run(*launcher, EXAMPLE, *options).splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(match[1]) for line in lines if (match := re.fullmatch(r"step \d+: loss ([\d.]+)", line))]


def test_the_example_trains_under_a_plan_and_the_planner(tmp_path):
    out = str(tmp_path / "plan.json")
    place = ["place", f"{EXAMPLE}:make_model", "--devices", "2", "--hardware", "a100", "--device-type", "cpu"]
    run("-m", "flows.cli.app", *place, "--format", "torchrec", "--out", out, "--home", str(tmp_path / "home"))
    for options in (["--plan", out], ["--costs", "a100"]):
        lines = train(*options)
        assert sum("sparse_arch.embedding_bag_collection." in line for line in lines) == 5
        first, *_, last = losses(lines)
        assert len(losses(lines)) == 4
        assert last < first


def test_the_tutorial_runs_from_its_first_cell_to_its_last():
    cells = json.loads((PROJECT / "docs/examples/tutorial.ipynb").read_text())["cells"]
    run("-c", "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
