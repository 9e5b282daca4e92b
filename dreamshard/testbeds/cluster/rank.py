"""The program of one rank: connect to the testbed, then do what it asks until it ends the rank.

It starts as `python -m dreamshard.testbeds.cluster.rank FILE`, where FILE holds what a rank needs to start, as JSON; `-`
reads a line of it from standard input, which stays open as long as the rank may run. A rank also ends, even while it
computes, if the testbed is gone.
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
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # it is exported, but not in `__all__`

from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster import messages, reception
from dreamshard.testbeds.cluster.messages import STAGES
from dreamshard.testbeds.cluster.passes import RankMeasurer, Team
from dreamshard.testbeds.cluster.sharded.exchange import Teams
from dreamshard.testbeds.cluster.sharded.job import ShardingJob
from dreamshard.testbeds.cluster.sharded.passes import measure_sharding
from dreamshard.testbeds.machine import device_model

FALLBACK_TIMEOUT = timedelta(days=1)
"""Of a collective that nobody ends; the testbed's own limits are shorter."""


@dataclass(frozen=True)
class Start:
    """What a rank needs to start.

    Attributes:
        address: of the testbed, as is `port`.
        key: that the testbed's callers know, in hexadecimal digits.
        path: `sys.path` to unpickle work with.
        host: name of this machine, or of what stands for one.
        look_for_gpu: whether the rank may run on a GPU.
        rank: None for the environment's `RANK`; the same for `local_rank`, its number on the host.
        folder: to remove if the testbed is gone, or None.
    """

    address: str
    port: int
    key: str
    path: list[str]
    host: str
    look_for_gpu: bool
    rank: int | None = None
    local_rank: int | None = None
    folder: str | None = None

    @classmethod
    def from_json(cls, text: str, environment: Mapping[str, str]) -> "Start":
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        for name in ("rank", "local_rank"):
            if fields[name] is None:
                fields[name] = int(environment[name.upper()])
        return cls(**fields)

    def to_json(self) -> str:
        """Write for another process."""
        return json.dumps(asdict(self))


class Channel:
    """A rank's connection to the testbed; the rank ends when it breaks."""

    def __init__(self, connection: Connection, folder: str | None) -> None:
        self._connection = connection
        self._folder = folder
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stage = STAGES[0]
        threading.Thread(target=self._listen, daemon=True).start()  # notices during a computation, too, that it broke

    def receive(self) -> Any:
        """The testbed's next message; None to end."""
        return pickle.loads(self._received.get())

    def send(self, message: object) -> None:
        """See `reception.send`."""
        reception.send(self._connection, message)

    def enter(self, stage: str) -> None:
        """Report that one of `STAGES` begins."""
        self._stage = stage
        self.send(messages.StageReached(stage))

    def report(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception hook that also reports to the testbed."""
        lines = traceback.format_exception(kind, error, trace)
        last = traceback.format_exception_only(kind, error)[-1].strip()
        self.send(messages.Failed(self._stage, last, "".join(lines)))
        sys.__excepthook__(kind, error, trace)

    def _listen(self) -> None:
        try:
            while True:
                self._received.put(self._connection.recv_bytes())
        except (EOFError, OSError):
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)  # the testbed can no longer do this
            os._exit(1)  # the main thread may be in an all-to-all that never ends


class Worker:
    """Does the testbed's jobs.

    Args:
        gpu: index of the GPU that this rank would use.
        start: tells where the other ranks are found.
    """

    def __init__(self, channel: Channel, welcome: messages.Welcome, start: Start, gpu: int | None) -> None:
        self._channel = channel
        self._rank = welcome.device
        self._device, backend = torch.device("cpu"), "gloo"
        if welcome.device_type == "cuda":
            if gpu is None:
                raise ValueError(
                    f"rank {start.rank} on {start.host} has no GPU that torch can use; check nvidia-smi there"
                )
            self._device, backend = torch.device("cuda", gpu), "nccl"
            torch.cuda.set_device(self._device)
        channel.enter("joining the other ranks")
        dist.init_process_group(
            backend,
            store=TCPStore(start.address, welcome.store_port, is_master=False),
            rank=self._rank,
            world_size=welcome.num_ranks,
            timeout=FALLBACK_TIMEOUT,
            device_id=self._device if self._device.type == "cuda" else None,  # or a barrier would guess a GPU
        )
        everyone = tuple(range(welcome.num_ranks))
        self._teams = {everyone: Team(self._rank, len(everyone), dist.group.WORLD)}
        self._measurer: RankMeasurer | None = None
        self._timeout_s: float | None = None

    def do(self, message: object) -> None:
        """Do one job and answer it."""
        if isinstance(message, messages.UseSetup):
            self._measurer = None  # its memory is free before the next one takes some
            setup: TestbedSetup = pickle.loads(message.setup)
            self._measurer = RankMeasurer(setup, self._device, self._channel.enter)
            self._timeout_s = setup.timeout_s
        elif isinstance(message, messages.FormGroup):
            self._channel.enter("joining the other ranks")
            group = dist.new_group(list(message.members), timeout=FALLBACK_TIMEOUT)
            if self._rank in message.members:
                position = message.members.index(self._rank)
                self._teams[message.members] = Team(position, len(message.members), group)
        else:
            self._answer(self._measure(message))

    def _measure(self, job: Any) -> object:
        if self._measurer is None or self._timeout_s is None:
            raise RuntimeError("a measurement was asked for before its setup came; report this as a defect")
        faulthandler.dump_traceback_later(self._timeout_s)  # to stderr, which the testbed reads
        try:
            if isinstance(job, ShardingJob):
                alone = Team(0, 1, None)
                teams = Teams(*(self._teams.get(members, alone) for members in job.groups))
                return measure_sharding(job, self._measurer.runner, teams, self._channel.enter)
            team = self._teams[job.members]
            if isinstance(job, messages.ExchangeJob):
                return self._measurer.measure_exchange(job.exchange, team)
            return self._measurer.measure(job, team)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _answer(self, value: object) -> None:
        self._channel.enter(messages.IDLE)
        self._channel.send(messages.Answer(value))


def main(start: Start) -> None:
    """Run one rank."""
    channel = Channel(reception.connect(start.address, start.port, bytes.fromhex(start.key)), start.folder)
    sys.excepthook = channel.report
    sys.path[:] = start.path
    gpu = _gpu_index(start)
    channel.send(
        messages.Hello(
            rank=start.rank or 0,
            pid=os.getpid(),
            host=start.host,
            processor=f"{device_model('cpu')} x{os.cpu_count()}",
            gpu=None if gpu is None else _gpu(gpu),
        )
    )
    torch.set_num_threads(1)
    worker: Worker | None = None
    while (message := channel.receive()) is not None:
        if worker is None:
            worker = Worker(channel, message, start, gpu)
            channel.enter(messages.IDLE)
        else:
            worker.do(message)
    if worker is not None:
        dist.destroy_process_group()


def _gpu_index(start: Start) -> int | None:
    """The GPU of this rank on its host: by its number there, or the only one that its launcher lets it see."""
    count = torch.cuda.device_count() if start.look_for_gpu else 0
    local_rank = start.local_rank or 0
    if count == 1:
        return 0
    return local_rank if local_rank < count else None


def _gpu(index: int) -> messages.Gpu:
    properties = torch.cuda.get_device_properties(index)
    return messages.Gpu(str(properties.name), str(properties.uuid), int(properties.total_memory))


def end_with_input() -> None:
    """End this process when its standard input closes, because the process that started it is gone."""

    def wait() -> None:
        while os.read(0, 1):  # `sys.stdin` would hold a lock that the interpreter needs to exit
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    # Imported by name, so that messages pickle alike on both sides.
    from dreamshard.testbeds.cluster import rank

    if sys.argv[1] == "-":
        text = sys.stdin.readline()
        rank.end_with_input()
    else:
        text = Path(sys.argv[1]).read_text()
    rank.main(rank.Start.from_json(text, os.environ))
    os._exit(0)  # the interpreter's own end takes seconds, for which the testbed would wait
