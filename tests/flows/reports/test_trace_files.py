"""Timelines of what stages measured."""

import json
from pathlib import Path

import pytest
import torch

from dreamshard.costs import PHASES
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from flows.reports import trace_files
from storage.run_records import checkpoints, report_store
from storage.run_records.report_store import EvaluationReport, MeasuredRow
from storage.store import open_store
from tests.helpers.lake import append_samples
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))


def test_an_evaluation_is_traced_with_a_process_for_every_placement_that_fits(tmp_path: Path):
    def row(placer: str, overall_ms: float | None) -> MeasuredRow:
        devices = (dict.fromkeys(PHASES, (overall_ms or 0.0) / 4), dict.fromkeys(PHASES, 0.0))
        return MeasuredRow(
            placer=placer,
            task="test-000",
            device=(0,),
            overall_ms=overall_ms,
            predicted_ms=1.0,
            place_ms=0.1,
            devices=devices,
        )

    report = EvaluationReport(
        key="k",
        dataset="d",
        tasks="t",
        testbed="simulated",
        hardware="a machine",
        reference="random",
        placers=(),
        gains={},
        rows=(row("random", 8.0), row("dreamshard", 4.0), row("size", None)),
    )
    report_store.save(open_store().evaluations, report)
    assert trace_files.write(open_store(), {"evaluation": "k"}, tmp_path / "trace.json") == 2
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["test-000, random: 8.000 ms", "test-000, dreamshard: 4.000 ms"]
    ends = {event["pid"]: event["ts"] + event["dur"] for event in events if event["ph"] == "X"}
    assert ends == {0: 8000.0, 1: 4000.0}


def test_a_profile_is_traced_with_the_placements_of_its_iteration(tmp_path: Path):
    tables = pool_of(4)
    version = dataset_version(tables)
    open_store().lake.write_dataset(tables, version, "meta")
    task = PlacementTask(tables, 2, 2**40, name="train-000")
    drawn = [[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]
    samples = [simulated().measure(task, Placement.whole(torch.tensor(device), 2)) for device in drawn]
    for iteration, chosen in ((1, samples[:2]), (2, samples[2:])):
        append_samples(open_store().lake, chosen, "training", iteration, version)
    checkpoints.folder(open_store(), "training").mkdir(parents=True)
    checkpoints.save_proposals(open_store(), "training", 2, [("train-000", drawn[2])])
    assert trace_files.write(open_store(), {"training": "training", "iteration": 2}, tmp_path / "trace.json") == 1
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert f"{samples[2].overall_ms:.3f} ms on simulated" in events[0]["args"]["name"]
