"""The program of one rank: connect to the testbed, then measure placements until the testbed ends it.

torch.distributed's elastic launcher starts it as `python -m dreamshard.testbeds.cluster.rank FOLDER`. The folder, which
only this user can read, has what a rank needs to start. A rank also ends, even while it computes, if the testbed is gone.
"""

import faulthandler
import json
import os
import pickle
import queue
import shutil
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import Infeasible
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.passes import RankMeasurer

START_FILE = "start.json"
"""Address of the testbed, its `sys.path` and the type of the devices."""
SETUP_FILE = "setup.pickle"
"""The pickled `TestbedSetup`."""
STAGES = (
    "starting",
    "joining the other ranks",
    "waiting for a placement",
    "reading lookups",
    "building the operator",
    "exchanging with the other ranks",
)
"""Stages of a rank, in order; in the last one it depends on the others."""


@dataclass(frozen=True)
class Hello:
    """A rank's first message."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Job:
    """A placement to measure."""

    task: PlacementTask
    placement: Placement


@dataclass(frozen=True)
class StageReached:
    """A rank begins one of `STAGES`."""

    name: str


@dataclass(frozen=True)
class Measured:
    """A rank's result: `[R, 4]` milliseconds per timed pass and phase, or the first shard that did not fit."""

    phases_ms: Float[Tensor, "R 4"] | Infeasible


@dataclass(frozen=True)
class Failed:
    """A rank raised an error and exits."""

    stage: str
    error: str
    traceback: str


class Channel:
    """A rank's connection to the testbed; the rank ends when it breaks."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stage = STAGES[0]
        threading.Thread(target=self._listen, daemon=True).start()  # notices during a computation, too, that it broke

    def receive(self) -> Any:
        """The testbed's next message: a `Job` per placement, and None to end."""
        return pickle.loads(self._received.get())

    def send(self, message: object) -> None:
        """Send by value; torch's own pickling would share memory between processes."""
        self._connection.send_bytes(pickle.dumps(message))

    def enter(self, stage: str) -> None:
        """Report that one of `STAGES` begins."""
        self._stage = stage
        self.send(StageReached(stage))

    def report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception hook that also reports to the testbed."""
        lines = traceback.format_exception(kind, error, trace)
        self.send(Failed(self._stage, traceback.format_exception_only(kind, error)[-1].strip(), "".join(lines)))
        sys.__excepthook__(kind, error, trace)

    def _listen(self) -> None:
        try:
            while True:
                self._received.put(self._connection.recv_bytes())
        except (EOFError, OSError):
            shutil.rmtree(self._folder, ignore_errors=True)  # the testbed can no longer do this
            os._exit(1)  # the main thread may be in an all-to-all that never ends


def main(folder: Path) -> None:
    """Run one rank."""
    start = json.loads((folder / START_FILE).read_text())
    channel = Channel(Client((start["host"], start["port"]), authkey=bytes.fromhex(start["key"])), folder)
    sys.excepthook = channel.report
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    channel.send(Hello(rank, os.getpid()))
    sys.path[:] = start["path"]  # to unpickle the setup
    setup: TestbedSetup = pickle.loads((folder / SETUP_FILE).read_bytes())
    torch.set_num_threads(1)

    channel.enter("joining the other ranks")
    device, backend = torch.device("cpu"), "gloo"
    if start["device_type"] == "cuda":
        device, backend = torch.device("cuda", local_rank), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=2 * setup.timeout_s + 60),  # a fallback: the testbed's own limit is shorter
        device_id=device if device.type == "cuda" else None,  # or a barrier would guess a GPU
    )
    measurer = RankMeasurer(setup, rank, device, channel.enter)
    channel.enter("waiting for a placement")
    while (job := channel.receive()) is not None:
        faulthandler.dump_traceback_later(setup.timeout_s)  # to stderr, which the testbed reads
        measured = measurer.measure(job.task, job.placement)
        faulthandler.cancel_dump_traceback_later()
        channel.enter("waiting for a placement")
        channel.send(Measured(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Imported by name, so that messages pickle alike on both sides.
    from dreamshard.testbeds.cluster.rank import main as run_rank

    run_rank(Path(sys.argv[1]))
