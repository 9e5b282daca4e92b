"""Measured costs by hand: samples, four tables to store with what was measured on them, and rows of an evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts, MeasuredOn
from dreamshard.evaluation import EvaluationRow
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.rounds import Steadiness
from tests.helpers.tables import BATCH, tables_of

_SETTING = {"precision": "fp32", "optimizer": "sgd", "batch_size": BATCH, "num_devices": 2}
MEASURED: dict[str, Any] = {
    "measured_on": MeasuredOn(testbed="simulated", hardware="a machine", **_SETTING),
    "steadiness": Steadiness(rounds=0, disturbed=0.0),
}
"""Fields of a report."""


def sample_of_phases(task: PlacementTask, placement: Placement, phases_ms: Tensor, **fields: Any) -> CostSample:
    """A sample with these `[D, 4]` milliseconds; `fields` override those of the sample."""
    made: dict[str, Any] = {"clock": "model", "testbed": "by hand"}
    made |= {"hardware": "simulated", "batch_size": BATCH, **fields}
    return CostSample(task=task, placement=placement, costs=DeviceCosts(phases_ms), **made)


def sample_of(task: PlacementTask, placement: Placement, device_ms: Sequence[float], **fields: Any) -> CostSample:
    """A sample with these forward-compute milliseconds per device and nothing else; `fields` as in `sample_of_phases`."""
    phases = torch.zeros(len(device_ms), 4)
    phases[:, 0] = torch.tensor(list(device_ms), dtype=torch.float32)
    return sample_of_phases(task, placement, phases, **fields)


def four_tables() -> Tables:
    """Tables a, b/c, d and e; the thirds in them do not survive being stored in a shorter float."""
    counts: dict[str, Any] = {"lookups": [100, 250, 0, 700], "unique_rows": [10, 20, 0, 40]}
    counts |= {"names": ("a", "b/c", "d", "e"), "bins": [[1 / 3, *[0.0] * 15, 2 / 3]] * 4}
    return tables_of([10, 20, 30, 40], [4, 8, 16, 32], [1 / 3, 2.5, 0.0, 7.0], **counts)


def make_sample(task: PlacementTask, device: list[int], testbed: str = "simulated:h100", ms: float = 0.1) -> CostSample:
    """Device d takes (1, 2, 3, 4) x ms x (d + 1)."""
    phases_ms = torch.tensor([[(d + 1) * ms * phase for phase in (1, 2, 3, 4)] for d in range(task.num_devices)])
    how: dict[str, Any] = {"repeats": 2, "testbed": testbed, "hardware": "simulated H100"}
    how |= {"batch_size": 512, "versions": {"torch": "2.13.0"}}
    return sample_of_phases(task, Placement.whole(device, task.num_devices), phases_ms, **how)


def make_evaluation(task: PlacementTask, placer: str, overall_ms: float) -> EvaluationRow:
    """The row of a placement with all tables but the last on device 0, which took `overall_ms`."""
    sample = make_sample(task, [0] * (len(task.tables) - 1) + [1])
    return EvaluationRow(placer, task, sample.placement, overall_ms, 2.5, 0.7, sample.costs)
