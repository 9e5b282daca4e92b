"""A testbed that keeps what it measured in a file, so that a long benchmark continues where it was interrupted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Testbed

_KEPT = ("overall_ms", "spread_ms", "repeats", "clock", "testbed", "hardware", "batch_size", "versions")


class RecordedTestbed:
    """Measures on another testbed, and answers the measurements of an earlier process from its file, in their order.

    Args:
        file: one JSON object per line; None to keep nothing.

    Raises:
        ValueError: from `measure`, where the file holds another placement at this point.
    """

    def __init__(self, testbed: Testbed, file: Path | None) -> None:
        self._testbed, self._file = testbed, file
        self.name, self.hardware, self.max_devices = testbed.name, testbed.hardware, testbed.max_devices
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
        self._known: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._next = 0

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """As the other testbed's."""
        key = {"task": task.name, "device": placement.device.tolist()}
        if self._next < len(self._known):
            known = self._known[self._next]
            self._next += 1
            if {name: known[name] for name in key} != key:
                raise ValueError(
                    f"measurement {self._next} of {self._file} is of {known['task']} and not of this placement of "
                    f"{task.name}, so the benchmark has changed since; remove the file to measure anew"
                )
            return _sample(known, task, placement)
        sample = self._testbed.measure(task, placement)
        if sample.infeasible is not None:
            raise ValueError(
                f"{task.name} did not fit the devices, but this benchmark's tasks should; free some memory"
            )
        if self._file is not None:
            content = key | {"phases_ms": sample.costs.phases_ms().tolist()}
            content |= {name: getattr(sample, name) for name in _KEPT}
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(content) + "\n")
        return replace(sample, task=task)

    def close(self) -> None:
        """End the other testbed."""
        self._testbed.close()


def recorded_samples(lines: Sequence[str], tasks: Sequence[PlacementTask]) -> list[CostSample]:
    """All measurements of a file, in their order.

    Args:
        lines: of the file.
        tasks: those that were measured, found by name.
    """
    by_name = {task.name: task for task in tasks}
    samples = []
    for line in lines:
        known = json.loads(line)
        task = by_name[known["task"]]
        samples.append(_sample(known, task, Placement.whole(torch.tensor(known["device"]), task.num_devices)))
    return samples


def _sample(known: Mapping[str, Any], task: PlacementTask, placement: Placement) -> CostSample:
    costs = DeviceCosts.from_phases(torch.tensor(known["phases_ms"], dtype=torch.float32))
    return CostSample(task=task, placement=placement, costs=costs, **{name: known[name] for name in _KEPT})
