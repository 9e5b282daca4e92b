"""The page to read first: the whole chain, from tables to champion.

Each line below is a step of `steps.py`; what a step computes is in the one library function it names.
"""

from typing import Any

from prefect import flow

from flows import reporting, steps
from flows.measuring import reference, testbeds
from flows.parameters import (
    Iterations, MemoryGb, NumDevices, PlacementsPerIteration, RecipeName, Seed, Source, TablesPerTask, TestbedName, configure,
)  # fmt: skip
from flows.progress import progress_artifact


@flow(name="retrain", log_prints=False)
def retrain(
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    source: Source = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
    iterations: Iterations = None,
    placements_per_iteration: PlacementsPerIteration = None,
) -> dict[str, Any]:
    """Tables -> cost samples -> placer -> evaluation -> champion."""
    ...
