"""Heuristics place tables as the authors' program does, on tasks of Meta's tables.

`heuristics_as_published.json` holds the placements of its `sharders.py`: a digit per table, its device.
"""

import json
from pathlib import Path

import pytest
import torch

from dreamshard.search.baselines import HEURISTICS, baselines
from dreamshard.tasks import PlacementTask
from tests.benchmarks.measuring import Dims, meta_tables
from tests.helpers.tables import device_memory_bytes

KINDS: dict[str, tuple[Dims, int, int, int | None]] = {  # dims, tables, devices, memory; None for about an even share
    "the paper's": ("dim16", 50, 4, 5 * 2**30),
    "mixed dims": ("mixed", 50, 4, 40 * 2**30),
    "many devices": ("mixed", 80, 8, 40 * 2**30),
    "tight": ("dim16", 50, 4, None),
}
CASES = json.loads((Path(__file__).parent / "heuristics_as_published.json").read_text())["placements"]


def task_of_kind(name: str, seed: int) -> PlacementTask:
    dims, count, devices, memory_bytes = KINDS[name]
    pool = meta_tables("meta-dlrm-2021", dims)
    tables = pool.select(torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:count])
    tight_bytes = int(PlacementTask(tables, 1, 0, "fp16").table_bytes.sum()) * 101 // (100 * devices)
    return PlacementTask(tables, devices, memory_bytes or tight_bytes, "fp16", "sgd", f"{name} {seed}")


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_each_heuristic_places_as_the_authors_program_does(heuristic):
    compared = 0
    for case in CASES:
        task = task_of_kind(case["kind"], case["seed"])
        theirs = torch.tensor([int(digit) for digit in case[heuristic]])
        if int(device_memory_bytes(task.table_bytes, theirs[None], task.num_devices).max()) > task.memory_bytes:
            continue
        assert baselines()[heuristic].place(task).device.tolist() == theirs.tolist(), (heuristic, task.name)
        compared += 1
    assert compared >= 15
