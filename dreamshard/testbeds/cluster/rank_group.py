"""Running ranks as their driver sees them: one gloo group, in which it is number 0 and measures nothing."""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined] # exported, but not in `__all__`

from dreamshard.testbeds.cluster.jobs import STARTING, DeviceType, Job, Rank, Work
from dreamshard.testbeds.cluster.layout import Layout, describe_ranks
from dreamshard.testbeds.cluster.rank import FAILURES, JOIN_TIMEOUT, Groups, join

GRACE_S = 5.0
"""For the rank at fault to report, once another one has ended."""
END_TIMEOUT_S = 5.0
POLL_S = 0.2


@dataclass(eq=False)
class RankFailure(Exception):  # noqa: N818 - caught where it becomes a MeasurementError
    """A failure of one rank.

    Attributes:
        rank: its number.
        stage: one of `STAGES`.
        what: happened.
        trace: traceback, if there is one.
    """

    rank: int
    stage: str
    what: str
    trace: str = ""


@runtime_checkable
class RankLauncher(Protocol):
    """Starts rank processes, which run `rank.serve`."""

    num_ranks: int

    def start(self) -> Store:
        """Start all ranks; returns the store that they meet in."""
        ...

    def exits(self) -> Mapping[int, str]:
        """How ranks have ended, by number; of those that the launcher watches."""
        ...

    def end(self) -> None:
        """End all ranks that the launcher has started."""
        ...


class RankGroup:
    """Ranks that run from construction to `end`; starting others in this process ends them.

    Attributes:
        layout: of the ranks.
        ended: whether they have ended.
        failure: that they ended with.

    Raises:
        RankFailure: a rank did not start.
        ValueError: see `Layout`, or this process is already in a process group.
    """

    _running: ClassVar["RankGroup | None"] = None  # a process is in one default group of torch.distributed at a time

    def __init__(self, launcher: RankLauncher) -> None:
        if RankGroup._running is not None:
            RankGroup._running.end()
        if dist.is_initialized():
            raise ValueError(
                "this process is in a process group of torch.distributed, so it cannot drive ranks; measure in another one"
            )
        self.ended = False
        self.failure: RankFailure | None = None
        self._launcher = launcher
        self._store: Store | None = None
        self._group: dist.ProcessGroup | None = None
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._groups = Groups()
        # One thread starts the ranks and talks to them: they end with the thread that started them, and a collective
        # cannot be interrupted.
        self._thread = threading.Thread(target=self._drive, name="ranks", daemon=True)
        self._thread.start()
        RankGroup._running = self
        try:
            self.layout = Layout.of(self._answers(self._start, JOIN_TIMEOUT.total_seconds()))
        except BaseException:
            self.end()
            raise

    def do(self, jobs: Mapping[int, Job], setup: bytes, device_type: DeviceType, timeout_s: float) -> dict[int, Any]:
        """Results by number of rank.

        Raises:
            RankFailure: a rank raised, died, or did not answer in time; all have ended.
        """
        work = Work(device_type, jobs, setup, timeout_s)
        try:
            results = self._answers(lambda: self._exchange(work), timeout_s + GRACE_S)
        except BaseException:
            self.end()  # interrupted: the rest of this answer must not be read as the next one
            raise
        return {number: result for number, result in enumerate(results) if number in jobs}

    def end(self, *, done: bool = True) -> None:
        """End all ranks.

        Args:
            done: whether ranks of other launchers shall exit with 0.
        """
        if self.ended:
            return
        self.ended = True
        if RankGroup._running is self:
            RankGroup._running = None
        if done and self._last is not None and self._last.done() and self._last.exception() is None:
            wait([self._submit(self._dismiss)], END_TIMEOUT_S)
        self._launcher.end()
        wait([self._submit(self._leave)], END_TIMEOUT_S)
        self._calls.put(None)
        self._thread.join(POLL_S)

    def _start(self) -> list[Rank]:
        store = self._launcher.start()
        self._store = store.clone()  # type: ignore[attr-defined] # not in its stub; the other may wait in a collective
        self._group = join(store, 0, self._launcher.num_ranks)
        return self._gathered()

    def _exchange(self, work: Work) -> list[Any]:
        dist.broadcast_object_list([work], src=0, group=self._group)
        self._groups.make(work)
        return self._gathered()

    def _gathered(self) -> list[Any]:
        received: list[Any] = [None] * (1 + self._launcher.num_ranks)
        dist.gather_object(None, received, dst=0, group=self._group)
        return received[1:]

    def _dismiss(self) -> None:
        dist.broadcast_object_list([None], src=0, group=self._group)
        self._gathered()  # the driver leaves last, so that no rank loses it before the broadcast has arrived

    def _leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self._group = self._store = None

    def _drive(self) -> None:
        while (call := self._calls.get()) is not None:
            work, future = call
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is needed
                future.set_exception(error)

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        self._last = Future()
        self._calls.put((work, self._last))
        return self._last

    def _answers(self, work: Callable[[], list[Any]], timeout_s: float) -> list[Any]:
        """The answers of all ranks, unless one of them fails first."""
        future = self._submit(work)
        deadline = time.monotonic() + timeout_s
        while not wait([future], POLL_S).done:
            if time.monotonic() > deadline or self._launcher.exits() or self._value(FAILURES):
                break
        if future.done() and not isinstance(future.exception(), RuntimeError):
            return list(future.result())
        self.failure = self._failure(f"no answer within {timeout_s:g} s" if time.monotonic() > deadline else "")
        raise self.failure from (future.exception() if future.done() else None)

    def _failure(self, otherwise: str) -> RankFailure:
        """The rank at fault, once every rank has reported or ended, or some time has passed."""
        deadline = time.monotonic() + GRACE_S
        numbers = range(self._launcher.num_ranks)
        while True:
            reports, exits = self._reports(), self._launcher.exits()
            killed = [number for number in exits if number not in reports]
            silent = [number for number in numbers if number not in reports and number not in exits]
            if killed or not silent or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        causes = {number: report for number, report in reports.items() if report["is_cause"]}
        if not causes and (killed or silent):
            number = min(killed or silent)
            what = exits.get(number) or otherwise or f"{describe_ranks(silent)} ended without a report"
            return RankFailure(number, self._stage(number), what)
        at_fault = causes or reports
        number = min(at_fault, key=lambda each: int(at_fault[each]["order"]))
        report = at_fault[number]
        return RankFailure(number, report["stage"], report["error"], report["trace"])

    def _reports(self) -> dict[int, dict[str, Any]]:
        found = {}
        for number in range(self._launcher.num_ranks):
            if text := self._value(f"failure/{number}"):
                found[number] = json.loads(text)
        return found

    def _stage(self, number: int) -> str:
        return self._value(f"stage/{number}") or STARTING

    def _value(self, key: str) -> str:
        with suppress(dist.DistError):  # the launcher's store may have ended
            if self._store is not None and self._store.check([key]):
                return str(self._store.get(key).decode())
        return ""
