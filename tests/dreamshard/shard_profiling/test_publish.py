"""From a collection, measured here with the CPU's kernels, to package data and back."""

import json
import math
import tomllib
from pathlib import Path

import pytest
import torch

from dreamshard.placement import Placement
from dreamshard.shard_profiling import bundled_placers
from dreamshard.shard_profiling.bundled_placers import bundled_names, is_of
from dreamshard.shard_profiling.collection import collect
from dreamshard.shard_profiling.dataset import parquet_bytes, read_shards
from dreamshard.shard_profiling.design import CollectionConfig
from dreamshard.shard_profiling.fit import ShardTraining
from dreamshard.shard_profiling.publish import main, publish
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import H200
from dreamshard.workloads import read_tables
from flows.placing.placers import choose
from storage.store import open_store
from tests.helpers.shards import simulated_shards

QUICK = ShardTraining(stages=2, steps=20, policy_rounds=1, tables_per_task=6, num_devices=2)
TINY = CollectionConfig(
    sources=("nvidia-synthetic-tiny",), max_tables=4, batch_size=64, memory_bytes=8 * 2**20, repeats=2, num_shards=12
)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    collect(folder, TINY, seconds=math.inf, device_type="cpu", workers=1)
    return folder


@pytest.fixture(scope="module")
def name(costs: Path) -> str:
    """A word of this processor's own name; nothing measured here is called after a GPU."""
    words = read_shards(costs)[0].hardware.lower().replace("-", " ").split()
    return max((word for word in words if word.isalnum()), key=len)


@pytest.fixture
def package(costs: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    models = tmp_path / "dreamshard" / "shard_profiling" / "models"
    with torch.enable_grad():
        folder = publish(costs, name, H200, QUICK, models)
    assert folder == models / name
    monkeypatch.setattr(bundled_placers, "PACKAGED", models)
    return models


def test_a_collection_becomes_package_data_that_places_and_says_from_which_measurements(
    package: Path, name: str, costs: Path
):
    first = read_shards(costs)[0]
    assert bundled_names() == [name]
    task = PlacementTask(
        read_tables(ROOT / "dreamshard/workloads/data/nvidia-synthetic-tiny.csv").tables, 8, 141 * 2**30
    )
    chosen = choose(open_store(), name, task, None, note=print)
    note = " ".join(chosen.why.split())
    assert chosen.name == f"dreamshard {name}"
    assert chosen.costs_of is not None
    assert chosen.costs_of.hardware == first.hardware
    assert f"learnt from 12 shards measured on {first.hardware}, {first.measured_at.date().isoformat()}" in note
    assert "batch 64, fp16, rowwise_adagrad (" in note
    assert f"torch {first.versions['torch']}" in note
    placement = chosen.placer.place(task)
    assert isinstance(placement, Placement)
    assert task.is_legal(placement)


def test_data_model_and_report_stand_together_and_all_of_them_go_into_a_wheel(package: Path, name: str, costs: Path):
    files = {path.name for path in (package / name).iterdir()}
    assert files == {
        "config.json",
        "digests.json",
        "weights.safetensors",
        "measurements.json",
        "shards.parquet",
        "REPORT.md",
    }
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dreamshard"]
    packed = {path.name for pattern in patterns for path in package.parents[1].glob(pattern) if path.is_file()}
    assert packed == files
    kept, measured = read_shards(package / name / "shards.parquet"), read_shards(costs)
    assert [(s.index, s.forward_ms, s.tables.names) for s in kept] == [
        (s.index, s.forward_ms, s.tables.names) for s in measured
    ]
    assert {"hardware", "versions", "measured", "shards"} <= set(
        json.loads((package / name / "measurements.json").read_text())
    )
    report = (package / name / "REPORT.md").read_text()
    assert "| held-out shards |" in report
    assert "refitted: h200 on 12 shards" in report


def test_costs_of_another_device_are_not_published_as_an_h200(costs: Path, tmp_path: Path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(costs), "--name", "h200", "--package", str(tmp_path)])
    assert ended.value.code == 1
    assert "must not be called 'h200'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "hardware", "may"),
    [
        ("h200", "NVIDIA H200", True),
        ("h200", "simulated h200", False),
        ("simulated", "simulated h200", True),
    ],
)
def test_only_what_was_measured_on_an_accelerator_is_called_after_it(name: str, hardware: str, may: bool):
    assert is_of(name, hardware) is may


def test_thousands_of_shards_are_a_few_megabytes(tmp_path: Path):
    data = parquet_bytes(simulated_shards(300))
    assert 10 * len(data) < 8e6
