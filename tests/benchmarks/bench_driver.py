"""What a measurement on many ranks costs the process that drives them: its CPU time, with ranks that only answer."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.messages import Hello
from dreamshard.testbeds.cluster.rank_launcher import RankExit
from dreamshard.testbeds.cluster.ranks import Ranks
from dreamshard.testbeds.cluster.reception import Reception
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import pool_of

NUM_RANKS = 1024
PER_HOST = 8
TABLES_PER_RANK = 4
MEASUREMENTS = 5
BAR_S = 2.0


class LightLauncher:
    """A `RankLauncher` of ranks that measure nothing, all in one other process."""

    start_timeout_s = 120.0

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, reception: Reception) -> None:
        numbers = [str(reception.port), reception.key.hex(), str(self.num_ranks), str(PER_HOST)]
        self._process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.light_ranks", *numbers])

    def signals(self) -> Sequence[Connection]:
        return []

    def check(self, missing: Iterable[int]) -> None:
        raise AssertionError

    def admit(self, connection: Connection, message: object) -> None:
        raise AssertionError

    def ready(self, hello: Hello) -> None:
        pass

    def exit_of(self, rank: int) -> RankExit:
        return RankExit(rank, "it ended", "")

    def log_of(self, rank: int) -> str | None:
        return None

    def end(self, *, gently: bool) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class LightRanks:
    """A `RankSource` of light ranks."""

    advice = "there is no next measurement"

    def __init__(self, num_ranks: int) -> None:
        reception = Reception()
        self._ranks = Ranks(LightLauncher(num_ranks), reception)
        reception.close()
        self.layout = self._ranks.layout

    def running(self, num_devices: int, device_type: str) -> Ranks:
        return self._ranks

    def end_ranks(self) -> None:
        self._ranks.end()

    def close(self) -> None:
        self._ranks.end()


@contextmanager
def light_cluster(num_ranks: int) -> Iterator[ClusterTestbed]:
    """A testbed whose ranks only answer."""
    setup = TestbedSetup(num_devices=num_ranks, batch_size=65_536, lookups=EvenLookups(64))
    bed = ClusterTestbed(setup, "cpu", LightRanks(num_ranks))
    try:
        yield bed
    finally:
        bed.close()


def measurement_cpu_s(bed: ClusterTestbed, num_ranks: int, measurements: int) -> float:
    """Seconds of this process's CPU time per measurement, after a first one."""
    task = PlacementTask(pool_of(TABLES_PER_RANK * num_ranks), num_ranks, 2**40)
    device = torch.randint(num_ranks, (len(task.tables),), generator=torch.Generator().manual_seed(0))
    placement = Placement(device, num_ranks)
    bed.measure(task, placement)
    start = time.process_time()
    for _ in range(measurements):
        bed.measure(task, placement)
    return (time.process_time() - start) / measurements


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One row per number of ranks."""
    found = []
    for num_ranks in (128,) if quick else (128, NUM_RANKS):
        with light_cluster(num_ranks) as bed:
            value = measurement_cpu_s(bed, num_ranks, MEASUREMENTS)
        name = f"CPU time of a measurement: {num_ranks} ranks, {TABLES_PER_RANK * num_ranks} tables"
        found.append({"name": name, "value": value, "unit": "s", "bar": BAR_S, "ratio": BAR_S / value})
    return found
