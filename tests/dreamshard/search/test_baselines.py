"""Heuristics: by hand, and as the authors' program places tasks of Meta's tables.

`heuristics_as_published.json` holds the placements of its `sharders.py`: a digit per table, its device.
"""

import json
from pathlib import Path

import pytest
import torch

from dreamshard.search.packing import HEURISTICS, RandomPlacer, baselines
from dreamshard.tasks import PlacementTask
from tests.benchmarks.measuring import Dims, meta_tables
from tests.helpers.tables import shard_sums, tables_of, task_of

# size 400, 160, 200, 240; dim x pooling 40, 20, 4, 24; that x log10(rows) 80, 20, 6.8, 35.5
FOUR = tables_of([100, 10, 50, 30], dim=[4, 16, 4, 8], pooling=[10.0, 1.25, 1.0, 3.0])


@pytest.mark.parametrize(
    ("heuristic", "device"),
    [
        ("size_greedy", [0, 0, 1, 1]),  # 400 | 240 + 200, then 160 to 400
        ("dim_greedy", [1, 0, 1, 1]),  # 16 | 8 + 4 + 4
        ("lookup_greedy", [0, 1, 0, 1]),  # 40 | 24 + 20, then 4 to 40
        ("size_lookup_greedy", [0, 1, 1, 1]),  # 80 | 35.5 + 20 + 6.8
    ],
)
def test_a_heuristic_gives_the_largest_to_the_least_loaded(heuristic, device):
    assert baselines()[heuristic].place(PlacementTask(FOUR, 2, 2**20)).device.tolist() == device


def test_random_depends_on_the_tables_and_the_seed():
    tasks = [task_of([rows] * 30, 4, 100, name=name) for rows, name in ((1, "one"), (1, "two"), (2, "one"))]
    first, renamed, other = (RandomPlacer(0).place(task).device.tolist() for task in tasks)
    assert first == renamed != other
    drawn = {tuple(RandomPlacer(seed).place(tasks[0]).device.tolist()) for seed in range(20)}
    assert len(drawn) == 20, "each seed draws another placement"


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
        if int(shard_sums(task.table_bytes, theirs[None], task.num_devices).max()) > task.memory_bytes:
            continue
        assert baselines()[heuristic].place(task).device.tolist() == theirs.tolist(), (heuristic, task.name)
        compared += 1
    assert compared >= 15
