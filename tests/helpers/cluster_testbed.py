"""Real CPU ranks for tests, and whether their processes have ended."""

import os
import select

import psutil
import torch

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster import ClusterTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims

BATCH = 64
TABLES = tables_of_dims([4, 8, 128], rows=500)


def open_cluster(lookups=None, **options) -> ClusterTestbed:
    usual = {"num_devices": 2, "batch_size": BATCH, "lookups": lookups or EvenLookups(BATCH), "warmups": 1}
    return ClusterTestbed(TestbedSetup(**{**usual, "repeats": 5, "timeout_s": 60.0, **options}), "cpu")


def with_fault(fault: str) -> PlacementTask:
    """Two tables, the second of which `FaultyLookups` does not give."""
    return roomy_task(tables_of_dims([4, 8], rows=500, names=["healthy", fault]))


def placement(*device: int, num_devices: int = 2) -> Placement:
    return Placement.whole(torch.tensor(device), num_devices)


def pids_of(bed: ClusterTestbed) -> list[int]:
    """Of its ranks, in the order of devices."""
    return [process.pid for process in bed.ranks.launcher._processes]


def have_ended(pids: list[int]) -> bool:
    """Whether all processes end in time; psutil's own waiting would take their exit codes from the launcher."""
    return all(map(has_ended, pids))


def has_ended(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}
