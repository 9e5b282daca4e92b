"""Ranks and their driver: one loop of jobs, and processes of this host or of torchrun that run it.

A rank is a process that measures. The driver puts a job for all ranks into a store of torch.distributed and waits for their
results there, since a wait in the store can be given up and a collective cannot. Ranks exchange in groups of their own.

A rank that raises reports its traceback and waits; then the driver ends all ranks. A rank that gives no answer in time raises
where it hangs. If a rank has died, the launcher or a neighbour's broken connection tells the driver. Ranks end with the
driver, whose store ends with it.
"""

import json
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined] # not in `__all__`
from torch.multiprocessing import ProcessExitedException, start_processes  # type: ignore[attr-defined] # the same

from dreamshard.testbeds.device import Device, DoesNotFitError, device_model
from dreamshard.testbeds.exchange import Team, Teams, measure_exchange
from dreamshard.testbeds.jobs import DeviceType, ExchangeJob, Job
from dreamshard.testbeds.layout import Gpu, Layout, Rank
from dreamshard.testbeds.step import measure_sharding

HOST = "DREAMSHARD_HOST"
"""Environment variable: names this host; for several hosts of one name."""
LOOPBACK = "127.0.0.1"
JOIN_S = 120.0
IDLE = timedelta(days=1)
POLL_S = 0.02
GRACE_S = 5.0
"""For ranks to answer for themselves, once one has failed or its time is over."""
LINGER_S = 15.0
"""torchrun ends the driver with a failed rank; so long it has to say what happened."""
OVER, DONE, FAILED = "over", "done", "failed"


@dataclass(eq=False)
class RankFailure(Exception):  # noqa: N818 - caught where it becomes a MeasurementError
    """A failure of one rank: its number, what happened, and its traceback if there is one."""

    rank: int
    what: str
    trace: str = ""


@dataclass(frozen=True)
class Work:
    """Jobs by number of rank, which every rank receives; a rank without one does nothing.

    Attributes:
        setup: the pickled `TestbedSetup`.
        timeout_s: time limit of each job.
    """

    device_type: DeviceType
    jobs: Mapping[int, Job]
    setup: bytes
    timeout_s: float


@runtime_checkable
class Launcher(Protocol):
    """Starts ranks, each of which calls `serve`.

    Attributes:
        address: of this host, at which ranks reach the driver.
        restarts: whether it can start ranks again after a failure.
        advice: what to do after a failure.
    """

    num_ranks: int
    address: str
    restarts: bool
    advice: str

    def start(self, meeting: str) -> None:
        """Start all ranks, which meet the driver at `host:port`."""
        ...

    def exits(self) -> Mapping[int, str]:
        """How ranks have died, by number, as far as the launcher can tell."""
        ...

    def end(self) -> None:
        """Tidy up after all ranks have been told to end."""
        ...


class Ranks:
    """Running ranks as their driver sees them; they start with the first job.

    Args:
        launcher: starts them.
        expected: the layout, if it is known before they start; otherwise they start at once.

    Raises:
        ConnectionError: a rank did not start.
        ValueError: see `Layout`.
    """

    def __init__(self, launcher: Launcher, expected: Layout | None = None) -> None:
        self.launcher = launcher
        self._store: Store | None = None
        self._failure: RankFailure | None = None
        self._jobs = count()
        try:
            self.layout = expected or self._start()
        except RankFailure as failure:
            raise ConnectionError(
                f"the ranks could not start, since rank {failure.rank} failed: {failure.what}"
            ) from failure

    def do(self, jobs: Mapping[int, Job], setup: bytes, device_type: DeviceType, timeout_s: float) -> dict[int, Any]:
        """Results by number of rank.

        Raises:
            RankFailure: a rank raised, died, or did not answer in time; all have ended.
            ValueError: ranks came back on other hardware.
        """
        if self._store is None:
            if self._failure is not None and not self.launcher.restarts:
                raise self._failure
            before, self.layout = self.layout, self._start()
            if (before.pattern, before.kinds) != (self.layout.pattern, self.layout.kinds):
                raise ValueError("ranks came back on other hosts; start again, which keeps all samples")
        assert self._store is not None
        number = next(self._jobs)
        try:
            _put(self._store, f"job/{number}", Work(device_type, jobs, setup, timeout_s))
            results = self._answers(f"result/{number}", timeout_s + GRACE_S)
        except BaseException:
            self.end(FAILED)  # interrupted: the rest of this answer must not be read as the next one
            raise
        return {rank: result for rank, result in enumerate(results) if rank in jobs}

    def pids(self) -> list[int]:
        """Process ids of running ranks, in order of their devices."""
        return [rank.pid for rank in self.layout.ranks if rank.pid] if self._store is not None else []

    def end(self, how: str = DONE) -> None:
        """End all ranks; those of torchrun exit with 0 if they are `DONE`."""
        if self._store is not None:
            store, self._store = self._store, None
            self._silent_at_the_end(store, how)
            self.launcher.end()

    def _start(self) -> Layout:
        listening = socket.create_server((self.launcher.address, 0), backlog=4096)
        port = listening.getsockname()[1]
        self._store = TCPStore(
            self.launcher.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self._jobs = count()
        try:
            self.launcher.start(f"{self.launcher.address}:{port}")
            return Layout.of(self._answers("rank", JOIN_S))
        except BaseException:
            self.end(FAILED)
            raise

    def _answers(self, what: str, timeout_s: float) -> list[Any]:
        """What each rank has put under `what`.

        Raises:
            RankFailure: a rank failed first.
        """
        assert self._store is not None
        keys = [f"{what}/{number}" for number in range(self.launcher.num_ranks)]
        deadline = time.monotonic() + timeout_s
        while not _arrive(self._store, keys):
            if self._store.check(["failed"]) or self.launcher.exits() or time.monotonic() > deadline:
                missing = [number for number, key in enumerate(keys) if not self._store.check([key])] or [0]
                self._failure = self._find(self._store, missing, f"no answer within {timeout_s:g} s")
                raise self._failure
        answers = [_taken(self._store, key) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return answers

    def _find(self, store: Store, missing: list[int], otherwise: str) -> RankFailure:
        """The rank at fault: one that has died, else the first to report, unless its connection broke, else a silent one."""
        silent, exits = self._silent_at_the_end(store, FAILED), self.launcher.exits()
        report = json.loads(store.get("failed")) if store.check(["failed"]) else None
        if exits:
            return RankFailure(min(exits), exits[min(exits)])
        if report is not None and (report.pop("is_cause") or not silent):
            return RankFailure(**report)
        return RankFailure(min(silent), "it died without a report") if silent else RankFailure(missing[0], otherwise)

    def _silent_at_the_end(self, store: Store, how: str) -> list[int]:
        """End all ranks; the numbers of those that did not answer."""
        store.set(OVER, how)
        keys = [f"alive/{number}" for number in range(self.launcher.num_ranks)]
        deadline = time.monotonic() + GRACE_S
        while not _arrive(store, keys) and not self.launcher.exits() and time.monotonic() < deadline:
            pass
        return [number for number, key in enumerate(keys) if not store.check([key])]


class LocalLauncher:
    """Ranks in processes of this host.

    Args:
        num_ranks: of all.
        on_gpu: whether they run on GPUs.
    """

    address = LOOPBACK
    restarts = True
    advice = "the next measurement starts new ranks"

    def __init__(self, num_ranks: int, *, on_gpu: bool) -> None:
        self.num_ranks = num_ranks
        self._num_processes, self._on_gpu = num_ranks, on_gpu
        self._thread: threading.Thread | None = None
        self._exits: dict[int, str] = {}

    def start(self, meeting: str) -> None:
        """See `Launcher`; processes end with the thread that starts them, so that one waits for them."""
        self._exits = {}
        self._thread = threading.Thread(target=self._run, args=(meeting, self._exits), name="ranks", daemon=True)
        self._thread.start()

    def exits(self) -> Mapping[int, str]:
        """See `Launcher`."""
        return self._exits

    def end(self) -> None:
        """See `Launcher`."""
        if self._thread is not None:
            self._thread.join(GRACE_S)

    def _run(self, meeting: str, exits: dict[int, str]) -> None:
        arguments = (self.num_ranks, meeting, self._on_gpu)
        try:
            start_processes(_serve_here, arguments, self._num_processes, daemon=True, start_method="spawn")
        except ProcessExitedException as error:
            killed = f"it was killed by {getattr(error, 'signal_name', None)}"
            memory = ", as the system does when it runs out of memory" if error.exit_code == -signal.SIGKILL else ""
            what = f"it exited with code {error.exit_code}" if error.exit_code >= 0 else killed + memory
            exits[error.error_index] = what


class TorchrunLauncher(LocalLauncher):
    """The processes of torchrun: this one, rank 0, drives, and starts a process for its own rank."""

    restarts = False
    advice = "start the same command again, or let torchrun do so with --max-restarts"

    def __init__(self) -> None:
        super().__init__(num_launched(), on_gpu=True)
        self.address = os.environ["MASTER_ADDR"]
        self._num_processes = 1

    def start(self, meeting: str) -> None:
        """See `Launcher`."""
        _torchrun_store().set("meeting", meeting)
        super().start(meeting)


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """All ranks of torchrun for the block, in its rank 0.

    Raises:
        ConnectionError: a rank did not start.
        ValueError: see `Layout`.
    """
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


def serve_launched() -> None:
    """Serve as a rank of torchrun until its driver ends, and end this process; returns in rank 0, which is to drive."""
    number = int(os.environ["RANK"])
    if number > 0:
        meeting = _torchrun_store().get("meeting").decode()
        gpu_index = gpu_of(int(os.environ.get("LOCAL_RANK", "0")))
        serve(number, num_launched(), meeting, gpu_index, linger_s=LINGER_S)


def _torchrun_store() -> Store:
    found: tuple[Store, int, int] = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    return found[0]


def _serve_here(number: int, num_ranks: int, meeting: str, on_gpu: bool) -> None:
    serve(number, num_ranks, meeting, gpu_of(number) if on_gpu else None)


def serve(
    number: int, num_ranks: int, meeting: str, gpu_index: int | None, *, host: str | None = None, linger_s: float = 0.0
) -> None:
    """Do the driver's jobs until it ends the ranks; does not return, since the process ends then.

    Args:
        number: of this rank.
        num_ranks: of all.
        meeting: `host:port` of the driver's store.
        gpu_index: number of its GPU; None if it has none.
        host: name of the host; None for this machine's.
        linger_s: the process stays so long after a failure.
    """
    torch.set_num_threads(1)
    threading.Thread(target=_listen, args=(_connect(meeting), number, linger_s), daemon=True).start()
    store = _connect(meeting)
    try:
        _put(store, f"rank/{number}", describe_rank(number, gpu_index, host))
        group_store = PrefixStore("group", _connect(meeting))
        timeout = timedelta(seconds=JOIN_S)
        dist.init_process_group("gloo", store=group_store, rank=number, world_size=num_ranks, timeout=timeout)
        worker = _Worker(number, gpu_index)
        for job in count():
            work: Work = _taken(store, f"job/{job}")
            with _time_limit(work.timeout_s):
                result = worker.do(work)
            _put(store, f"result/{job}/{number}", result)
    except BaseException as error:  # noqa: BLE001 - it goes to the driver, whatever it is
        what = traceback.format_exception_only(error)[-1].strip()
        is_cause = not isinstance(error, RuntimeError) or isinstance(error, DoesNotFitError)  # no broken connection
        report = {"rank": number, "what": what, "trace": traceback.format_exc(), "is_cause": is_cause}
        with suppress(dist.DistError):
            store.compare_set("failed", "", json.dumps(report))  # the first one counts
    threading.Event().wait()  # until the driver ends all


class _Worker:
    """Does one rank's jobs."""

    def __init__(self, number: int, gpu_index: int | None) -> None:
        self._number, self._gpu_index = number, gpu_index
        self._groups: dict[tuple[DeviceType, tuple[int, ...]], dist.ProcessGroup | None] = {}
        self._device: Device | None = None
        self._setup = b""

    def do(self, work: Work) -> object:
        """The result of this rank's job; None if it has none."""
        place = self._place(work.device_type)
        for job in work.jobs.values():
            for members in job.groups:
                if len(members) > 1 or members == job.members:  # others alone exchange nothing
                    self._make_group(work.device_type, members, place)
        if self._number not in work.jobs:
            return None
        if self._device is None or self._setup != work.setup or self._device.device != place:
            self._device = None  # its memory is free before the next one takes some
            self._device, self._setup = Device(pickle.loads(work.setup), place), work.setup
        job = work.jobs[self._number]
        everyone, *others = [self._team(work.device_type, members) for members in job.groups]
        if isinstance(job, ExchangeJob):
            return measure_exchange(job.exchange, self._device, everyone)
        return measure_sharding(job, self._device, Teams(everyone, *others))

    def _make_group(self, device_type: DeviceType, members: tuple[int, ...], place: torch.device) -> None:
        """Make a group unless there is one; all ranks make all groups in one order."""
        if (device_type, members) not in self._groups:
            on_cuda = device_type == "cuda"
            self._groups[device_type, members] = dist.new_group(
                list(members),
                timeout=IDLE,
                backend="nccl" if on_cuda else "gloo",
                device_id=place if on_cuda else None,  # or a barrier would guess a GPU
                sort_ranks=False,
            )

    def _team(self, device_type: DeviceType, members: tuple[int, ...]) -> Team:
        return Team(members.index(self._number), len(members), self._groups.get((device_type, members)))

    def _place(self, device_type: DeviceType) -> torch.device:
        if device_type == "cpu":
            return torch.device("cpu")
        if self._gpu_index is None:
            raise ValueError(f"rank {self._number} has no GPU that torch can use; check nvidia-smi on its host")
        torch.cuda.set_device(self._gpu_index)
        return torch.device("cuda", self._gpu_index)


def describe_rank(number: int, gpu_index: int | None, host: str | None = None) -> Rank:
    """A rank in this process."""
    gpu = None
    if gpu_index is not None:
        properties = torch.cuda.get_device_properties(gpu_index)
        gpu = Gpu(str(properties.name), str(properties.uuid), int(properties.total_memory))
    name = host or os.environ.get(HOST) or socket.gethostname()
    return Rank(number, name, f"{device_model('cpu')} x{os.cpu_count()}", gpu, os.getpid())


def gpu_of(local_rank: int) -> int | None:
    """The GPU by its number on the host, or the only one that the launcher lets the rank see; None without one."""
    visible = torch.cuda.device_count()
    return min(local_rank, visible - 1) if visible == 1 or local_rank < visible else None


def _listen(store: Store, number: int, linger_s: float) -> None:
    """End this process when the driver says so or has ended, whatever the main thread does."""
    how = FAILED
    with suppress(dist.DistError):
        how = store.get(OVER).decode()
        store.set(f"alive/{number}", "")
    if how != DONE:
        time.sleep(linger_s)
    os._exit(0 if how == DONE or not linger_s else 1)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in the main thread, wherever it is, if the block takes longer."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _connect(meeting: str) -> Store:
    host, _, port = meeting.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=IDLE)


def _put(store: Store, key: str, value: object) -> None:
    store.set(key, pickle.dumps(value))  # type: ignore[arg-type] # takes bytes, too


def _taken(store: Store, key: str) -> Any:
    return pickle.loads(store.get(key))


def _arrive(store: Store, keys: list[str]) -> bool:
    """Whether all keys are there; waits a moment if not. A wait in the store warns of every time that it gives up."""
    if store.check(keys):
        return True
    time.sleep(POLL_S)
    return False
