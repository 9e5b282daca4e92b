"""Ranks and their driver: which is which device, one loop of jobs, and processes of this host or of torchrun that run it.

A rank is a process that measures. The driver puts a job for all ranks into a store of torch.distributed and waits for their
results there, since a wait in the store can be given up and a collective cannot. Ranks exchange in groups of their own.

A rank that raises reports its traceback and waits. A rank that gives no answer in time raises where it hangs. If a rank has
died, the launcher or its silence tells the driver. Then the driver's launcher ends all ranks. Ranks end with the driver at
the latest, because its store ends with it.
"""

import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined] # not in `__all__`
from torch.multiprocessing import get_context

from dreamshard.costs import Exchange
from dreamshard.tables import ON_ONE_HOST
from dreamshard.tasks import Shards
from dreamshard.testbeds.base import DeviceType, TestbedSetup
from dreamshard.testbeds.device import Device, device_model
from dreamshard.testbeds.step import Teams, measure_exchange, measure_step

HOST = "DREAMSHARD_HOST"
"""Environment variable: names this host; for several hosts of one name."""
JOIN_S = 120.0
IDLE = timedelta(days=1)
GRACE_S = 5.0
"""For ranks to answer for themselves, once one has failed or its time is over."""
OVER, DONE, FAILED = "over", "done", "failed"


@dataclass(frozen=True)
class Rank:
    """A process that measures.

    Attributes:
        number: among all ranks, from 0.
        host: name of the machine, or of its stand-in.
        processor: model of the CPU, with the number of its cores.
        gpu: model of the GPU that this rank would use, with memory of `gpu_bytes`; None if it has none.
    """

    number: int
    host: str
    processor: str
    gpu: str | None = None
    gpu_bytes: int = 0


@dataclass(frozen=True)
class Layout:
    """Ranks in the order of devices: hosts one after another, the fullest first.

    Raises:
        ValueError: a host other than the last one has fewer ranks than the first.
    """

    ranks: tuple[Rank, ...]

    def __post_init__(self) -> None:
        if any(count != self.devices_per_host for count in self.pattern[:-1]):
            raise ValueError(
                f"hosts have different numbers of ranks {self.pattern}; start as many on each (only the last may have fewer)"
            )

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> "Layout":
        """Order the ranks so that those of a host are consecutive."""
        fullest_first = Counter(rank.host for rank in ranks).most_common()
        return cls(tuple(rank for host, _ in fullest_first for rank in ranks if rank.host == host))

    @property
    def pattern(self) -> list[int]:
        """Ranks of each host."""
        return list(Counter(rank.host for rank in self.ranks).values())

    @property
    def devices_per_host(self) -> int:
        """Of the first host."""
        return self.pattern[0]

    def part(self, num_devices: int, devices_per_host: int | None = None) -> "Layout":
        """The ranks that measure a task of so many devices, of any number per host without `devices_per_host`.

        Raises:
            ValueError: there are too few ranks or hosts for the task.
        """
        chosen, ranks_per_host, wanted = self.ranks, self.devices_per_host, ""
        if devices_per_host is not None:
            per_host, wanted = min(devices_per_host, num_devices), f" at {devices_per_host} per host"
            chosen = tuple(rank for d, rank in enumerate(self.ranks) if d % ranks_per_host < per_host <= ranks_per_host)
        if len(chosen) < num_devices:
            raise ValueError(
                f"{num_devices} devices{wanted} are requested, but there are {len(self.ranks)} ranks at {ranks_per_host} per "
                "host; request fewer, or start more (docs/many-hosts.md)"
            )
        return Layout(chosen[:num_devices])

    def hardware(self, device_type: DeviceType) -> str:
        """Names the devices for people and for comparing samples, e.g. `NVIDIA H100 x64, 8 hosts`; raises as `model`."""
        count = f", {len(self.ranks)} ranks" if device_type == "cpu" else f" x{len(self.ranks)}"
        hosts = f", {len(self.pattern)} hosts" if len(self.pattern) > 1 else ""
        return f"{self.model(device_type)}{count}{hosts}"

    def model(self, device_type: DeviceType) -> str:
        """Names the devices without their number, e.g. `NVIDIA H100`.

        Raises:
            ValueError: a rank has no GPU: it must not be replaced by a CPU.
        """
        for rank in self.ranks:
            if device_type == "cuda" and rank.gpu is None:
                raise ValueError(
                    f"rank {rank.number} on host {rank.host} has no GPU that torch can use; start one rank per GPU, check "
                    "`nvidia-smi` there, or use cluster:cpu"
                )
        names = {str(rank.gpu) if device_type == "cuda" else rank.processor for rank in self.ranks}
        return " and ".join(sorted(names))


@dataclass(eq=False)
class RankFailure(Exception):  # noqa: N818 - caught where it becomes a MeasurementError
    """A failure of one rank: its number, what happened, and its traceback if there is one."""

    rank: int
    what: str
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A measurement, which every rank receives.

    Attributes:
        members: ranks that take part, by device; the others do nothing.
        measured: an all-to-all, or the shards of all devices.
    """

    device_type: DeviceType
    setup: TestbedSetup
    members: tuple[int, ...]
    measured: Exchange | Shards


class Launcher:
    """Starts ranks, each of which calls `serve`; here in processes of this host."""

    address = "127.0.0.1"
    """Of this host, at which ranks reach the driver."""

    def __init__(self, num_ranks: int, *, on_gpu: bool) -> None:
        self.num_ranks, self.on_gpu, self._num_processes = num_ranks, on_gpu, num_ranks
        self._processes: list[Any] = []

    def start(self, meeting: str) -> None:
        """Start all ranks, which meet the driver at `host:port`."""
        for number in range(self._num_processes):
            arguments = (number, self.num_ranks, meeting, number if self.on_gpu else None)
            process = get_context("spawn").Process(target=serve, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def exits(self) -> Mapping[int, str]:
        """How ranks have died, by number, as far as the launcher can tell."""
        return {number: _death(process.exitcode) for number, process in enumerate(self._processes) if process.exitcode}

    def end(self) -> None:
        """End all ranks."""
        for process in self._processes:
            process.kill()
            process.join()


def _death(code: int) -> str:
    if code > 0:
        return f"it exited with code {code}"
    memory = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"it was killed by {signal.Signals(-code).name}{memory}"


class Ranks:
    """Running ranks as their driver sees them, until the first failure.

    Raises:
        ConnectionError: a rank did not start.
        ValueError: see `Layout`.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.failure: RankFailure | None = None
        self._jobs = count()
        listening = socket.create_server((launcher.address, 0), backlog=4096)  # at this address alone
        port = listening.getsockname()[1]
        self._store = TCPStore(
            launcher.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        launcher.start(f"{launcher.address}:{port}")
        try:
            self.layout = Layout.of(self._answers("rank", JOIN_S))
        except RankFailure as failure:
            raise ConnectionError(
                f"the ranks could not start, since rank {failure.rank} failed: {failure.what}"
            ) from failure

    def do(self, job: Job) -> list[Any]:
        """The measurements of each member.

        Raises:
            RankFailure: a rank raised, died, or did not answer in time, now or before; all have ended.
        """
        if self.failure is not None:
            raise self.failure
        number = next(self._jobs)
        _put(self._store, f"job/{number}", job)
        results = self._answers(f"result/{number}", job.setup.timeout_s + GRACE_S)
        return [results[member] for member in job.members]

    def end(self, how: str = DONE) -> None:
        """End all ranks; those of torchrun exit with 0 if they are `DONE`."""
        if self.failure is None:
            self._end(how, RankFailure(0, "all ranks have ended"))

    def _answers(self, what: str, timeout_s: float) -> list[Any]:
        """What each rank has put under `what`; a RankFailure says that a rank failed first, and all have ended."""
        missing = self._missing(what, timeout_s, lambda: self._store.check([FAILED]) or self.launcher.exits())
        if missing:
            raise self._end(FAILED, RankFailure(missing[0], f"no answer within {timeout_s:g} s"))
        return [_taken(self._store, f"{what}/{number}") for number in range(self.launcher.num_ranks)]

    def _end(self, how: str, otherwise: RankFailure) -> RankFailure:
        """End all ranks; returns which is at fault: one that has died, else a silent one, else the one that reported."""
        self.failure = otherwise
        self._store.set(OVER, how)
        silent = self._missing("alive", GRACE_S, self.launcher.exits)
        if exits := self.launcher.exits():
            self.failure = RankFailure(*min(exits.items()))
        elif silent:
            self.failure = RankFailure(silent[0], "it died without a report")
        elif self._store.check([FAILED]):
            self.failure = _taken(self._store, FAILED)
        self.launcher.end()
        return self.failure

    def _missing(self, what: str, timeout_s: float, is_over: Callable[[], object]) -> list[int]:
        """Ranks that have put nothing under `what` after this time, or once all `is_over`.

        A wait in the store would warn each time that it gives up.
        """
        keys = [f"{what}/{number}" for number in range(self.launcher.num_ranks)]
        deadline = time.monotonic() + timeout_s
        while not self._store.check(keys) and not is_over() and time.monotonic() < deadline:
            time.sleep(0.01)
        return [number for number, key in enumerate(keys) if not self._store.check([key])]


class TorchrunLauncher(Launcher):
    """The processes of torchrun: this one, rank 0, drives, and starts a process for its own rank."""

    def __init__(self) -> None:
        super().__init__(num_launched(), on_gpu=True)
        self.address = os.environ["MASTER_ADDR"]
        self._num_processes = 1

    def start(self, meeting: str) -> None:
        """Tell all hosts where to meet, and start this host's."""
        _torchrun_store().set("meeting", meeting)
        super().start(meeting)


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """All ranks of torchrun for the block in its rank 0; another process serves, and ends here. Raises as `Ranks`."""
    if number := int(os.environ["RANK"]):
        meeting = _torchrun_store().get("meeting").decode()
        serve(number, num_launched(), meeting, int(os.environ.get("LOCAL_RANK", "0")))
    ranks = Ranks(TorchrunLauncher())
    how = FAILED
    try:
        yield ranks
        how = DONE
    finally:
        ranks.end(how)


def num_launched() -> int:
    """Processes that torchrun started together with this one; 1 if it did not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def _torchrun_store() -> Store:
    joined: tuple[Store, int, int] = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    return joined[0]


def serve(number: int, num_ranks: int, meeting: str, local_rank: int | None) -> None:
    """Do the driver's jobs until it ends the ranks; does not return, since the process ends then.

    Args:
        meeting: `host:port` of the driver's store.
        local_rank: number of this rank's GPU on the host; None if it uses none.
    """
    torch.set_num_threads(1)
    address, _, port = meeting.rpartition(":")
    store: Any = TCPStore(address, int(port), is_master=False, timeout=IDLE)  # whose type lacks `clone`
    threading.Thread(target=_listen, args=(store.clone(), number), daemon=True).start()
    signal.signal(signal.SIGALRM, _give_up)
    try:
        machine, visible, gpu = socket.gethostname(), torch.cuda.device_count(), local_rank
        if gpu is not None and gpu >= visible:  # or the launcher lets the rank see only one
            gpu = 0 if visible == 1 else None
        store.set(f"machine/{number}", machine)
        _put(store, f"rank/{number}", describe_rank(number, gpu))
        machines = store.multi_get([f"machine/{other}" for other in range(num_ranks)])
        here = [other for other, name in enumerate(machines) if name.decode() == machine]
        if gpu is None:
            cores = sorted(os.sched_getaffinity(0))
            if len(cores) > len(here):  # a core for each rank of this host, and one for their driver
                os.sched_setaffinity(0, {cores[here.index(number) * len(cores) // len(here)]})
        worker = _Worker(number, gpu, len(here))
        groups = PrefixStore("group", store.clone())
        timeout = timedelta(seconds=JOIN_S)
        dist.init_process_group("gloo", timeout=timeout, world_size=num_ranks, rank=number, store=groups)
        for position in count():
            job: Job = _taken(store, f"job/{position}")
            signal.setitimer(signal.ITIMER_REAL, job.setup.timeout_s)
            result = worker.do(job)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _put(store, f"result/{position}/{number}", result)
    except BaseException as error:  # noqa: BLE001 - it goes to the driver, whatever it is
        signal.setitimer(signal.ITIMER_REAL, 0)
        what = traceback.format_exception_only(error)[-1].strip()
        with suppress(dist.DistError):
            if not store.check([FAILED]):  # the first one counts
                _put(store, FAILED, RankFailure(number, what, traceback.format_exc()))
    threading.Event().wait()  # until the driver ends all


@dataclass
class _Worker:
    """Does one rank's jobs."""

    number: int
    gpu: int | None
    ranks_here: int
    device: Device | None = None

    def do(self, job: Job) -> object:
        """This rank's measurements; None if it takes no part."""
        place, members, measured = torch.device("cpu"), torch.tensor(job.members), job.measured
        if job.device_type == "cuda":
            place = torch.device(f"cuda:{self.gpu}")
            torch.cuda.set_device(place)
        teams = Teams(self._group(members[None], place))
        if isinstance(measured, Shards) and measured.is_any(*ON_ONE_HOST).any():
            hosts = members.view(-1, measured.devices_per_host)
            teams = Teams(teams.everyone, self._group(hosts, place), self._group(hosts.T, place))
        if self.number not in job.members:
            return None
        if self.device is None or (self.device.setup, self.device.device) != (job.setup, place):
            self.device = None  # its memory is free before the next one takes some
            self.device = Device(job.setup, place, self.ranks_here)
        if isinstance(measured, Exchange):
            return measure_exchange(measured, self.device, teams.everyone)
        return measure_step(measured, self.device, teams.everyone.rank(), teams)

    def _group(self, groups: Int[Tensor, "G M"], place: torch.device) -> dist.ProcessGroup:
        """This rank's group of these; all ranks make all groups in one order."""
        made = {numbers: _group_of(numbers, place) for numbers in map(tuple, groups.tolist())}
        return next((made[numbers] for numbers in made if self.number in numbers), next(iter(made.values())))


@cache
def _group_of(members: tuple[int, ...], place: torch.device) -> dist.ProcessGroup:
    """Ranks that exchange; every rank of the job loop calls this, once, whether it is a member or not."""
    on_cuda = place.type == "cuda"
    group: dist.ProcessGroup = dist.new_group(
        list(members),
        timeout=IDLE,
        backend="nccl" if on_cuda else "gloo",
        device_id=place if on_cuda else None,  # or a barrier would guess a GPU
        sort_ranks=False,
    )
    return group


def describe_rank(number: int, gpu: int | None) -> Rank:
    """A rank in this process, on this GPU."""
    rank = Rank(number, os.environ.get(HOST, socket.gethostname()), f"{device_model('cpu')} x{os.cpu_count()}")
    if gpu is None:
        return rank
    properties = torch.cuda.get_device_properties(gpu)
    return replace(rank, gpu=properties.name, gpu_bytes=properties.total_memory)


def _listen(store: Store, number: int) -> None:
    """End this process when all ranks are done or the driver has ended, whatever the main thread does."""
    with suppress(dist.DistError):
        how = store.get(OVER).decode()
        store.set(f"alive/{number}", "")
        if how == DONE:
            os._exit(0)
        store.get("end")  # nobody sets it: the driver says what failed, and ends
    os._exit(1)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("no answer within the time limit")


def _put(store: Store, key: str, value: object) -> None:
    store.set(key, pickle.dumps(value))  # type: ignore[arg-type] # takes bytes, too


def _taken(store: Store, key: str) -> Any:
    return pickle.loads(store.get(key))
