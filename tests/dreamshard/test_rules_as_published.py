"""Rules of thumb place tables as the authors' program does, on tasks of Meta's tables.

`rules_as_published.json` holds the placements of its `sharders.py`: a digit per table, its device.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.tasks import PlacementTask
from tests.benchmarks.pools import Dims, meta_tables
from tests.helpers.tables import device_memory_bytes


@dataclass(frozen=True)
class Kind:
    """Tasks of one kind; `memory_bytes` is each device's, None for slightly more than an even share."""

    dims: Dims
    tables: int
    devices: int
    memory_bytes: int | None


KINDS = {
    "the paper's": Kind("dim16", 50, 4, 5 * 2**30),
    "mixed dims": Kind("mixed", 50, 4, 40 * 2**30),
    "many devices": Kind("mixed", 80, 8, 40 * 2**30),
    "tight": Kind("dim16", 50, 4, None),
}
CASES = json.loads((Path(__file__).parent / "rules_as_published.json").read_text())["placements"]


def task_of_kind(name: str, seed: int) -> PlacementTask:
    kind = KINDS[name]
    pool = meta_tables("meta-dlrm-2021", kind.dims)
    drawn = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[: kind.tables]
    tables = pool.select(drawn)
    tight_bytes = int(tables.memory_bytes("fp16", "sgd").sum()) * 101 // (100 * kind.devices)
    return PlacementTask(tables, kind.devices, kind.memory_bytes or tight_bytes, "fp16", "sgd", f"{name} {seed}")


@pytest.mark.parametrize("rule", RULES_OF_THUMB)
def test_each_rule_places_every_table_where_the_authors_program_does_wherever_that_is_legal(rule):
    compared = 0
    for case in CASES:
        task = task_of_kind(case["kind"], case["seed"])
        theirs = torch.tensor([int(digit) for digit in case[rule]])
        if int(device_memory_bytes(task.table_bytes, theirs[None], task.num_devices).max()) > task.memory_bytes:
            continue
        assert baselines()[rule].place(task).device.tolist() == theirs.tolist(), (rule, task.name)
        compared += 1
    assert compared >= 15
