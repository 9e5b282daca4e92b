"""What a benchmark has measured is not measured again, and is not taken for something else."""

from pathlib import Path

import pytest
import torch

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from tests.benchmarks.recorded_testbed import RecordedTestbed
from tests.helpers.tables import tables_of
from tests.helpers.testbeds import simulated

TASK = PlacementTask(tables_of([1000, 2000, 3000]), 2, 2**30, name="task")
PLACEMENTS = [Placement(torch.tensor(device), 2) for device in ([0, 1, 0], [1, 1, 0], [0, 1, 0])]


class Idle:
    """A testbed that must not be asked."""

    name, hardware, max_devices = "idle", "none", None

    def measure(self, task, placement):
        raise AssertionError(f"{task.name} is measured again")


def test_an_interrupted_benchmark_goes_on_from_its_file(tmp_path: Path):
    file = tmp_path / "costs.jsonl"
    RecordedTestbed(simulated(), file).measure(TASK, PLACEMENTS[0])
    resumed = RecordedTestbed(simulated(), file)
    measured = [resumed.measure(TASK, placement) for placement in PLACEMENTS]
    assert len(file.read_text().splitlines()) == len(PLACEMENTS)
    replayed = RecordedTestbed(Idle(), file)
    for sample in measured:
        again = replayed.measure(TASK, sample.placement)
        assert again.overall_ms == sample.overall_ms
        assert torch.equal(again.costs.phases_ms(), sample.costs.phases_ms())
    with pytest.raises(AssertionError, match="measured again"):
        replayed.measure(TASK, PLACEMENTS[0])


def test_measurements_of_another_benchmark_are_refused(tmp_path: Path):
    RecordedTestbed(simulated(), tmp_path / "costs.jsonl").measure(TASK, PLACEMENTS[0])
    with pytest.raises(ValueError, match="remove the file to measure anew"):
        RecordedTestbed(simulated(), tmp_path / "costs.jsonl").measure(TASK, PLACEMENTS[1])
