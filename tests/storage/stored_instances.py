"""Four tables that can be checked by hand, and what was measured on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.evaluation import EvaluationRow
from dreamshard.placement import Placement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask


def make_tables() -> Tables:
    """Tables a, b/c, d and e; thirds, so that a float that is stored shorter does not come back."""
    shares = torch.zeros(4, 17, dtype=torch.float64)
    shares[:, 0], shares[:, 16] = 1 / 3, 2 / 3
    return Tables(
        ("a", "b/c", "d", "e"),
        rows=torch.tensor([10, 20, 30, 40]),
        dim=torch.tensor([4, 8, 16, 32]),
        pooling_factor=torch.tensor([1 / 3, 2.5, 0.0, 7.0], dtype=torch.float64),
        bins=shares,
        lookups=torch.tensor([100, 250, 0, 700]),
        unique_rows=torch.tensor([10, 20, 0, 40]),
    )


def make_sample(task: PlacementTask, device: list[int], testbed: str = "simulated:h100", ms: float = 0.1) -> CostSample:
    """Device d takes (1, 2, 3, 4) x ms x (d + 1)."""
    phases = torch.tensor([[(d + 1) * ms * phase for phase in (1, 2, 3, 4)] for d in range(task.num_devices)])
    costs = DeviceCosts.from_phases(phases)
    return CostSample(
        task=task,
        placement=Placement(torch.tensor(device), task.num_devices),
        costs=costs,
        overall_ms=1 / 3,
        spread_ms=0.01,
        repeats=15,
        clock="model",
        testbed=testbed,
        hardware="simulated H100",
        batch_size=512,
        versions={"torch": "2.13.0"},
    )


def make_evaluation(task: PlacementTask, placer: str, overall_ms: float) -> EvaluationRow:
    found = make_sample(task, [0] * (len(task.tables) - 1) + [1])
    return EvaluationRow(placer, task, found.placement, overall_ms, 2.5, True, 0.7, found.costs)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The columns of each table that the rows of an answer place, in order; one that is placed twice is there twice."""
    columns: dict[str, list[int]] = {}
    for row in rows:
        columns.setdefault(row["table"], []).extend(range(row["column_start"], row["column_end"]))
    return {name: sorted(found) for name, found in columns.items()}
