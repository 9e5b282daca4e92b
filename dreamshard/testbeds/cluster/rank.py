"""The loop of one rank: receive a job, do it, give back its result."""

import json
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined] # exported, but not in `__all__`

from dreamshard.testbeds.cluster.jobs import (
    EXCHANGING,
    IDLE,
    JOINING,
    PREPARING,
    STARTING,
    DeviceType,
    Gpu,
    Job,
    Rank,
    Work,
)
from dreamshard.testbeds.cluster.passes import RankMeasurer, Team
from dreamshard.testbeds.cluster.sharded.exchange import Teams
from dreamshard.testbeds.cluster.sharded.job import ShardingJob
from dreamshard.testbeds.cluster.sharded.passes import measure_sharding
from dreamshard.testbeds.machine import device_model

HOST = "DREAMSHARD_HOST"
"""Environment variable: names this host; for several hosts of one name."""

LAUNCHER = "env://"
"""Meeting point of ranks that torchrun started: `MASTER_ADDR` and `MASTER_PORT`."""

JOIN_TIMEOUT = timedelta(seconds=120)
IDLE_TIMEOUT = timedelta(days=1)
"""Ranks wait so long for a job."""
FAILURES = "failures"
"""Counts failed ranks in the store."""
LISTENER_DELAY_S = 1.0
"""For a rank to report its own error, once another one has."""
EXIT_DELAY_S = 15.0
"""torchrun ends the driver with a failed rank; so long it has to say what happened."""


@dataclass(frozen=True)
class Start:
    """A rank's place among all.

    Attributes:
        meeting: `host:port` of a TCPStore, or `LAUNCHER`.
        local_rank: number on its host.
        host: name of the host; None for this machine's.
        look_for_gpu: whether the rank may run on a GPU.
    """

    number: int
    num_ranks: int
    meeting: str
    local_rank: int
    host: str | None = None
    look_for_gpu: bool = True

    @property
    def rank(self) -> Rank:
        """The rank on this machine."""
        gpu = self.gpu_index()
        return Rank(
            self.number,
            self.host or os.environ.get(HOST) or socket.gethostname(),
            f"{device_model('cpu')} x{os.cpu_count()}",
            None if gpu is None else gpu_of(gpu),
        )

    def gpu_index(self) -> int | None:
        """The GPU by its number on the host, or the only one that the launcher lets the rank see."""
        count = torch.cuda.device_count() if self.look_for_gpu else 0
        if count == 1:
            return 0
        return self.local_rank if self.local_rank < count else None


class Progress:
    """Tells the driver, through the store, how far a rank is and why it ended.

    Attributes:
        stage: one of `STAGES`.
        has_ended: whether the driver has dismissed the rank.
    """

    def __init__(self, store: Store, start: Start) -> None:
        self.stage = STARTING
        self._is_launched = start.meeting == LAUNCHER
        self._store = store.clone()  # type: ignore[attr-defined] # not in its stub; the other may wait in a collective
        self._number = start.number
        self._thread = threading.get_ident()
        self._failing = threading.Lock()
        self.has_ended = False
        own_store = store.clone()  # type: ignore[attr-defined]
        threading.Thread(target=self._listen, args=(own_store,), daemon=True).start()

    def enter(self, stage: str) -> None:
        """Begin one of `STAGES`."""
        self.stage = stage
        self._store.set(f"stage/{self._number}", stage)

    def fail(self, error: str, trace: str, *, is_own: bool = True) -> None:
        """Report an error and end this process.

        Args:
            is_own: False if another rank's error is the reason.
        """
        self._failing.acquire()  # whoever comes second waits for the end
        try:
            order = self._store.add(FAILURES, 1)
            is_cause = is_own and self.stage not in (JOINING, IDLE, EXCHANGING)
            report = {"stage": self.stage, "error": error, "trace": trace, "order": order, "is_cause": is_cause}
            self._store.set(f"failure/{self._number}", json.dumps(report))
            if self._is_launched:
                sys.stderr.write(trace if is_own else "")
                time.sleep(EXIT_DELAY_S)
        finally:
            os._exit(1)  # also if the store has ended with the driver

    def _listen(self, store: Store) -> None:
        """End this process when another rank fails or the driver ends, whatever the main thread does."""
        with suppress(dist.DistError):
            store.wait([FAILURES], IDLE_TIMEOUT)
            time.sleep(LISTENER_DELAY_S)
            self.fail("another rank failed", self._stack(), is_own=False)
        if not self.has_ended:
            os._exit(1)

    def _stack(self) -> str:
        return "".join(traceback.format_stack(sys._current_frames()[self._thread]))

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Fail with the main thread's stack if the block takes longer."""

        def give_up() -> None:
            self.fail(f"no answer within {timeout_s:g} s", self._stack())

        timer = threading.Timer(timeout_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Groups:
    """Groups of ranks that measure together, by type of device and members; ranks and driver make all in one order."""

    def __init__(self) -> None:
        self._made: dict[tuple[DeviceType, tuple[int, ...]], dist.ProcessGroup | None] = {}

    def make(self, work: Work, device: torch.device | None = None) -> None:
        """Make those that the work needs and that there are not yet; `device` of this rank."""
        for members in dict.fromkeys(members for job in work.jobs.values() for members in _groups_of(job)):
            if (work.device_type, members) not in self._made:
                self._made[work.device_type, members] = dist.new_group(
                    [1 + member for member in members],  # the driver is 0
                    timeout=IDLE_TIMEOUT,
                    backend="nccl" if work.device_type == "cuda" else "gloo",
                    device_id=device if work.device_type == "cuda" else None,  # or a barrier would guess a GPU
                    sort_ranks=False,
                )

    def team(self, device_type: DeviceType, members: tuple[int, ...], number: int) -> Team:
        """The group of `members`, as one of them sees it; a rank alone may have none."""
        return Team(members.index(number), len(members), self._made.get((device_type, members)))


class Worker:
    """Does one rank's jobs."""

    def __init__(self, start: Start, progress: Progress) -> None:
        self._start = start
        self._progress = progress
        self._groups = Groups()
        self._measurer: RankMeasurer | None = None
        self._pickled_setup = b""

    def do(self, work: Work) -> object:
        """The result of this rank's job; None if it has none."""
        self._progress.enter(PREPARING)
        device = self._device(work.device_type)
        self._progress.enter(JOINING)
        self._groups.make(work, device)
        self._progress.enter(PREPARING)
        if self._measurer is None or self._pickled_setup != work.setup or self._measurer.device != device:
            self._measurer = None  # its memory is free before the next one takes some
            self._measurer = RankMeasurer(pickle.loads(work.setup), device, self._progress.enter)
            self._pickled_setup = work.setup
        job = work.jobs.get(self._start.number)
        if job is None:
            return None
        own = self._start.number
        if isinstance(job, ShardingJob):
            teams = Teams(*(self._groups.team(work.device_type, members, own) for members in job.groups))
            return measure_sharding(job, self._measurer.runner, teams, self._progress.enter)
        team = self._groups.team(work.device_type, job.members, own)
        return self._measurer.measure_exchange(job.exchange, team)

    def _device(self, device_type: DeviceType) -> torch.device:
        if device_type == "cpu":
            return torch.device("cpu")
        index = self._start.gpu_index()
        if index is None:
            raise ValueError(f"rank {self._start.number} has no GPU that torch can use; check nvidia-smi on its host")
        torch.cuda.set_device(index)
        return torch.device("cuda", index)


def serve(start: Start) -> None:
    """Do the driver's jobs until it ends the ranks; an error ends this process, as does the end if torchrun started it."""
    torch.set_num_threads(1)
    store = meet(start.meeting, 1 + start.number, start.num_ranks)
    progress = Progress(store, start)
    try:
        own = start.rank
        progress.enter(JOINING)
        group = join(store, 1 + start.number, start.num_ranks)
        dist.gather_object(own, dst=0, group=group)
        worker = Worker(start, progress)
        while True:
            progress.enter(IDLE)
            received: list[Any] = [None]
            dist.broadcast_object_list(received, src=0, group=group)
            work: Work | None = received[0]
            if work is None:
                progress.has_ended = True
                with suppress(RuntimeError):  # the driver may have left already
                    dist.gather_object(None, dst=0, group=group)
                break
            with progress.within(work.timeout_s):
                result = worker.do(work)
            progress.enter(IDLE)
            dist.gather_object(result, dst=0, group=group)
    except BaseException as error:  # noqa: BLE001 - it goes to the driver, whatever it is
        progress.fail(traceback.format_exception_only(error)[-1].strip(), traceback.format_exc())
    if start.meeting == LAUNCHER:
        os._exit(0)  # a thread that waits in the store can abort the interpreter's own end, which fails torchrun's host
    dist.destroy_process_group()


def meet(meeting: str, number: int, num_ranks: int) -> Store:
    """The store of the driver, which is number 0, and of all ranks."""
    if meeting == LAUNCHER:
        store, _, _ = next(rendezvous(LAUNCHER, number, 1 + num_ranks, timeout=JOIN_TIMEOUT))
        return PrefixStore(f"dreamshard/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    host, _, port = meeting.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=JOIN_TIMEOUT)


def join(store: Store, number: int, num_ranks: int) -> dist.ProcessGroup:
    """The group of the driver and all ranks, for jobs and results."""
    dist.init_process_group("gloo", store=store, rank=number, world_size=1 + num_ranks, timeout=JOIN_TIMEOUT)
    group: dist.ProcessGroup = dist.new_group(timeout=IDLE_TIMEOUT)
    return group


def _groups_of(job: Job) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that exchange in a job; a rank alone needs none besides the first."""
    others = job.groups[1:] if isinstance(job, ShardingJob) else ()
    return (job.members, *(group for group in others if len(group) > 1))


def gpu_of(index: int) -> Gpu:
    """A GPU of this machine."""
    properties = torch.cuda.get_device_properties(index)
    return Gpu(str(properties.name), str(properties.uuid), int(properties.total_memory))
