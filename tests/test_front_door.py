"""`import dreamshard as ds`: each name's example runs, and so does the code of pages, notebooks and docs/torchrec.md."""

import doctest
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.ports import free_port

pytest.importorskip("torchrec")

from torchrec import KeyedJaggedTensor
from torchrec.distributed.planner import Topology
from torchrec.distributed.sharding_plan import get_default_sharders

import dreamshard as ds
from dreamshard.testbeds import TestbedSetup
from tests.helpers.meta_models import bag, bags

PROJECT = Path(__file__).parents[1]
LISTED = [
    {"name": "user", "rows": 1_000_000, "dim": 64, "pooling_factor": 1.5},
    {"name": "item", "rows": 200_000, "dim": 64, "pooling_factor": 12.5},
]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Names that the examples use."""
    task = ds.PlacementTask(ds.read_tables(LISTED), num_devices=2, memory_bytes=2**30)
    setup = TestbedSetup(num_devices=2, batch_size=512, lookups=lambda name: None)
    testbed = ds.open_testbed("simulated:a100", setup)
    small = ds.TrainingConfig(iterations=1, placements_per_iteration=4)
    folder = tmp_path_factory.mktemp("examples")
    plan = ds.place(task, "a100")
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "tables.json").write_text(json.dumps(LISTED))
    values = {"task": task, "setup": setup, "testbed": testbed, "plan": plan, "folder": folder}
    modules = {"ds": ds, "torch": torch, "Path": Path, "replace": replace, "Topology": Topology}
    torchrec = {"get_default_sharders": get_default_sharders, "KeyedJaggedTensor": KeyedJaggedTensor}
    model = bags(bag("user", 1_000_000, 64), bag("item", 200_000, 64))
    placer = ds.train(task.tables, [task], testbed, small)
    return values | modules | torchrec | {"model": model, "placer": placer}


@pytest.mark.parametrize("name", [name for name in ds.__all__ if name != "profiled_steps"])  # which needs a job
def test_the_example_of_every_name_runs(name, known, monkeypatch):
    monkeypatch.chdir(known["folder"])
    value = getattr(ds, name)
    text = doctest.DocTestParser().get_doctest(value.__doc__, dict(known), name, None, None)
    assert text.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS)
    assert runner.run(text).failed == 0


def test_the_page_of_all_of_dreamshard_runs(known, monkeypatch):
    monkeypatch.chdir(known["folder"])
    page = (PROJECT / "docs/all-of-dreamshard.md").read_text()
    spoken = {"model": known["model"], "__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, spoken)
    assert spoken["plan"].num_devices == 2
    assert set(spoken["costs"]) == {"placed", "on one device"}


def test_the_notebook_places_from_parts_as_place_does(monkeypatch):
    cells = json.loads((PROJECT / "docs/examples/place-from-parts.ipynb").read_text())["cells"]
    spoken = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), spoken)
    assert spoken["mine"].tables == spoken["plan"].tables


pytest.importorskip("torchrec")

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


@pytest.mark.processes
@pytest.mark.slow
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


@pytest.mark.processes
@pytest.mark.slow
def test_the_tutorial_runs_from_its_first_cell_to_its_last():
    cells = json.loads((PROJECT / "docs/examples/tutorial.ipynb").read_text())["cells"]
    run("-c", "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
