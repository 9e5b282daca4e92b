"""Lookups, tables and tasks for testbeds' tests; importable from a rank, which unpickles the source."""

import os
import signal
import threading
from dataclasses import dataclass

import torch

from dreamshard.tables import NUM_BINS, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.lookups import Lookups


@dataclass(frozen=True)
class EvenLookups:
    """Every sample looks the same number of rows up, all of them below `rows`."""

    batch_size: int
    per_sample: int = 2
    rows: int = 8

    def __call__(self, name: str) -> Lookups:
        count = self.batch_size * self.per_sample
        return Lookups(
            torch.arange(count, dtype=torch.int32) % self.rows,
            torch.arange(self.batch_size + 1) * self.per_sample,
        )


@dataclass(frozen=True)
class FaultyLookups(EvenLookups):
    """Does something bad when a rank reads the table called `faulty`."""

    fault: str = "raise"

    def __call__(self, name: str) -> Lookups:
        if name == "faulty":
            if self.fault == "raise":
                raise OSError("the disk is on fire")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                threading.Event().wait()
        return super().__call__(name)


def make_tables(
    dims: list[int], *, rows: int = 1000, pooling: float = 2.0, batch_size: int = 64, names: list[str] | None = None
) -> Tables:
    """Tables of these dims whose distinct rows are half of their lookups, each looked up twice."""
    count = len(dims)
    lookups = torch.full((count,), int(pooling * batch_size))
    bins = torch.zeros(count, NUM_BINS)
    bins[:, 1] = 1
    return Tables(
        tuple(names or [f"table-{t}" for t in range(count)]),
        torch.full((count,), rows),
        torch.tensor(dims),
        torch.full((count,), pooling),
        bins,
        lookups,
        (lookups // 2).clamp(max=rows),
    )


def make_task(tables: Tables, num_devices: int = 2, memory_bytes: int = 2**40) -> PlacementTask:
    """A task with room for everything everywhere."""
    return PlacementTask(tables, num_devices, memory_bytes)
