"""Lookups for the tests of testbeds, importable from a rank, which unpickles them."""

import os
import signal
import threading
from dataclasses import dataclass, replace

import torch

from dreamshard.workloads import Lookups
from tests.helpers.tables import tables_of_dims

BATCH, TABLES = 64, tables_of_dims([4, 8, 128], rows=500)
"""A batch and tables that ranks on the CPU measure in a moment."""


def drawn(workload):
    return [(table, workload.lookups(t)) for t, table in enumerate(workload.listed)]


@dataclass(frozen=True)
class EvenLookups:
    """Every sample looks up the same number of rows, all of them below `rows`."""

    batch_size: int
    per_sample: int = 2
    rows: int = 8

    def __call__(self, name: str) -> Lookups:
        count = self.batch_size * self.per_sample
        return Lookups(
            torch.arange(count, dtype=torch.int32) % self.rows, torch.arange(self.batch_size + 1) * self.per_sample
        )


@dataclass(frozen=True)
class FaultyLookups(EvenLookups):
    """Fails when a rank reads the table called `raise`, `kill`, `hang` or `outside`."""

    def __call__(self, name: str) -> Lookups:
        if name == "raise":
            raise OSError("the disk is on fire")
        if name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "hang":
            threading.Event().wait()
        lookups = super().__call__(name)
        return replace(lookups, indices=lookups.indices + 992) if name == "outside" else lookups
