"""Where ranks come from: processes on this host, or torchrun's on many."""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined] # exported, but not in `__all__`
from torch.multiprocessing import Process, start_processes  # type: ignore[attr-defined] # the same

from dreamshard.testbeds.cluster.jobs import DeviceType
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.rank import LAUNCHER, Start, meet, serve
from dreamshard.testbeds.cluster.rank_group import END_TIMEOUT_S, RankFailure, RankGroup, RankLauncher

LOOPBACK = "127.0.0.1"


@runtime_checkable
class RankSource(Protocol):
    """Where a testbed's ranks come from.

    Attributes:
        layout: of all ranks that there may be.
        advice: what to do after a failure.
    """

    layout: Layout
    advice: str

    def running(self, num_ranks: int, device_type: DeviceType) -> RankGroup:
        """Ranks, at least so many, started if none run.

        Raises:
            RankFailure: a rank did not start.
        """
        ...

    def close(self) -> None:
        """The testbed that had this source has closed."""
        ...


class LocalRanks:
    """Ranks on this host, as many as a task has devices; they end with the testbed."""

    advice = "the next measurement starts new ranks"

    def __init__(self, most_devices: int, device_type: DeviceType) -> None:
        count = torch.cuda.device_count() if device_type == "cuda" else most_devices
        cuda = device_type == "cuda"
        self.layout = Layout(tuple(Start(n, count, "", n, look_for_gpu=cuda).rank for n in range(count)))
        self._group: RankGroup | None = None
        self._processes: LocalLauncher | None = None

    def running(self, num_ranks: int, device_type: DeviceType) -> RankGroup:
        """See `RankSource`; exactly so many."""
        if self._group is not None and len(self._group.layout.ranks) != num_ranks:
            self._group.end()
        if self._group is None or self._group.ended:
            self._processes = LocalLauncher(num_ranks, look_for_gpu=device_type == "cuda")
            self._group = RankGroup(self._processes)
        return self._group

    def close(self) -> None:
        """See `RankSource`."""
        if self._group is not None:
            self._group.end()

    def pids(self) -> list[int]:
        """Process ids of the running ranks, in order."""
        running = self._group is not None and not self._group.ended
        return self._processes.pids() if self._processes and running else []


class HostRanks:
    """Ranks of a launcher of many hosts; they are started here, which tells hosts and hardware.

    Args:
        restarts: whether the launcher can start ranks again after a failure.

    Raises:
        ConnectionError: a rank did not start.
        ValueError: see `Layout`.
    """

    def __init__(self, launcher: RankLauncher, advice: str, *, restarts: bool) -> None:
        self.advice = advice
        self._restarts = restarts
        self._launcher = launcher
        try:
            self._group = RankGroup(launcher)
        except RankFailure as failure:
            raise ConnectionError(
                f"the ranks could not start, since rank {failure.rank} failed while {failure.stage}: {failure.what}"
            ) from failure
        self.layout = self._group.layout

    def running(self, num_ranks: int, device_type: DeviceType) -> RankGroup:
        """See `RankSource`; all of them."""
        if self._group.failure is not None and not self._restarts:
            raise self._group.failure
        if self._group.ended:
            self._group = RankGroup(self._launcher)
            if (self._group.layout.pattern, self._group.layout.kinds) != (self.layout.pattern, self.layout.kinds):
                self._group.end()
                raise ValueError(
                    "ranks came back on hosts of another number or kind, so samples would no longer be of the same hardware; "
                    "start again, which keeps all samples and takes the hosts as they are"
                )
        return self._group

    def close(self) -> None:
        """See `RankSource`; the ranks stay for the next testbed."""

    def end(self, *, done: bool) -> None:
        """See `RankGroup.end`."""
        self._group.end(done=done)


class LocalLauncher:
    """Starts ranks in processes of this host, which end with the thread that starts them.

    Args:
        num_ranks: of the group.
        look_for_gpu: whether they run on GPUs.
        only: the only one to start, because torchrun has started the others; None for all.
    """

    def __init__(self, num_ranks: int, *, look_for_gpu: bool = True, only: Start | None = None) -> None:
        self.num_ranks = num_ranks
        self._look_for_gpu = look_for_gpu
        self._only = only
        self._processes: dict[int, Process] = {}

    def start(self) -> Store:
        """See `RankLauncher`."""
        if self._only is not None:
            self._spawn([self._only])
            return meet(LAUNCHER, 0, self.num_ranks)
        store, meeting = open_store(LOOPBACK)
        numbers = range(self.num_ranks)
        self._spawn([Start(n, self.num_ranks, meeting, n, look_for_gpu=self._look_for_gpu) for n in numbers])
        return store

    def exits(self) -> Mapping[int, str]:
        """See `RankLauncher`."""
        codes = {number: process.exitcode for number, process in self._processes.items()}
        return {number: describe_exit(code) for number, code in codes.items() if code is not None}

    def end(self) -> None:
        """See `RankLauncher`."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(END_TIMEOUT_S)

    def pids(self) -> list[int]:
        """Process ids, in order."""
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def _spawn(self, starts: list[Start]) -> None:
        # Failures are reported by the driver, so what torch says of broken connections would only be noise.
        with _environment(OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR"):
            context = start_processes(_run, (starts,), len(starts), join=False, daemon=True, start_method="spawn")
        self._processes = dict(zip((start.number for start in starts), context.processes, strict=True))


def open_store(address: str) -> tuple[Store, str]:
    """A store on a free port of this host, and where ranks meet there."""
    listening = socket.create_server((address, 0), backlog=4096)
    port = listening.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, f"{address}:{port}"


@contextmanager
def launched_ranks() -> Iterator[HostRanks]:
    """All ranks of torchrun for the block, in its rank 0.

    Raises:
        ConnectionError: a rank did not start.
        ValueError: see `Layout`.
    """
    advice = "start the same command again, or let torchrun do so with --max-restarts"
    ranks = HostRanks(LocalLauncher(num_launched(), only=launched_start()), advice, restarts=False)
    done = False
    try:
        yield ranks
        done = True
    finally:
        ranks.end(done=done)


def launched_start() -> Start:
    """This process's rank, as torchrun says."""
    return Start(int(os.environ["RANK"]), num_launched(), LAUNCHER, int(os.environ.get("LOCAL_RANK", "0")))


def num_launched() -> int:
    """Processes that torchrun started together with this one; 1 if it did not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def describe_exit(exit_code: int) -> str:
    """An exit code for people."""
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    killed = f"it was killed by {signal.Signals(-exit_code).name}"
    return killed + (", as the system does when it runs out of memory" if exit_code == -signal.SIGKILL else "")


def _run(place: int, starts: list[Start]) -> None:
    serve(starts[place])
    os._exit(0)  # the interpreter's own end takes seconds, for which the driver would wait


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Variables of processes that start within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
