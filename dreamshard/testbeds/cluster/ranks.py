"""Running ranks as the testbed sees them: one connection each, jobs out, answers and failures back.

How rank processes start and end is up to a `RankLauncher`; `rank.py` is what they run.
"""

import pickle
import selectors
import socket
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection

from torch.distributed import TCPStore  # type: ignore[attr-defined] # it is exported, but not in `__all__`

from dreamshard.testbeds.cluster import messages
from dreamshard.testbeds.cluster.layout import Layout, describe_ranks
from dreamshard.testbeds.cluster.messages import IDLE, STAGES, DeviceType, Hello
from dreamshard.testbeds.cluster.rank_launcher import RankLauncher, RankTrouble
from dreamshard.testbeds.cluster.reception import Reception, allow_connections, send

GRACE_S = 5.0  # for the rank at fault to report, once another one's all-to-all has failed
DUMP_S = 1.0  # for a hanging rank to dump its traceback


class Ranks:
    """Processes that run from construction to `end`.

    Raises:
        RankTrouble: a rank did not start.
        ValueError: see `Layout`.
    """

    def __init__(self, launcher: RankLauncher, reception: Reception) -> None:
        self._launcher = launcher
        self._reception = reception
        self._selector = selectors.DefaultSelector()  # of the ranks' connections, by device
        self._connections: list[Connection] = []
        self._store: TCPStore | None = None
        self._setup: bytes | None = None
        self._teams: set[tuple[int, ...]] = set()
        arrived: dict[int, tuple[Hello, Connection]] = {}
        allow_connections(2 * launcher.num_ranks)  # of ranks and those who start them
        try:
            launcher.start(reception)
            self._gather(arrived)
            self.layout = Layout.of(hello for hello, _ in arrived.values())
        except BaseException:
            launcher.end(gently=False)
            self._close(connection for _, connection in arrived.values())
            raise
        self._stages = [STAGES[0]] * len(arrived)
        for device, hello in enumerate(self.layout.ranks):
            self._connections.append(arrived[hello.rank][1])
            self._selector.register(self._connections[-1], selectors.EVENT_READ, device)

    def join(self, device_type: DeviceType, setup: bytes | None, members: tuple[int, ...]) -> None:
        """Let ranks join each other, take a pickled setup and make a group of `members`, where they have not yet.

        Args:
            setup: None for ranks that work by themselves.

        Raises:
            RankTrouble: a rank is gone.
        """
        everyone = range(len(self._connections))
        if self._store is None:
            listening = socket.create_server((self._reception.address, 0), backlog=4096)
            port = listening.getsockname()[1]
            self._store = TCPStore(
                self._reception.address,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
            self._teams.add(tuple(everyone))
            for device in everyone:
                self.send(messages.Welcome(device, len(everyone), device_type, port), [device])
        if setup != self._setup:
            self._setup = setup
            if setup is not None:
                self.send(messages.UseSetup(setup), everyone)
        if members not in self._teams:
            self._teams.add(members)
            self.send(messages.FormGroup(members), everyone)

    def send(self, message: object, devices: Iterable[int]) -> None:
        """Send `message` to the ranks of `devices`.

        Raises:
            RankTrouble: one is gone.
        """
        data = pickle.dumps(message)
        for device in devices:
            try:
                self._connections[device].send_bytes(data)
            except OSError as error:
                raise self._death_of(device) from error

    def collect(self, devices: Sequence[int], timeout_s: float) -> list[object]:
        """The next answer of each of `devices`, in their order.

        Args:
            timeout_s: longest time in all.

        Raises:
            RankTrouble: a rank raised, died, or did not answer in time; if its failure made others fail, it names the
                first one.
        """
        answers: dict[int, object] = {}
        suspect: RankTrouble | None = None
        pending = set(devices)
        deadline = time.monotonic() + timeout_s + DUMP_S
        while pending:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise suspect or self._hang_of(sorted(pending), timeout_s)
            for device in [key.data for key, _ in ready]:
                message = self._receive(device)
                if isinstance(message, messages.Answer):
                    answers[device] = message.value
                    pending.discard(device)
                elif isinstance(message, messages.Failed):
                    trouble = self._trouble(device, message.stage, message.error, message.traceback)
                    if message.stage != STAGES[-1]:
                        raise trouble
                    self._selector.unregister(self._connections[device])  # it ends
                    pending.discard(device)
                    suspect = suspect or trouble
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if suspect:
            raise suspect
        return [answers[device] for device in devices]

    def end(self) -> None:
        """End all ranks: idle ones by a message, busy ones by a signal."""
        idle = all(stage in (STAGES[0], IDLE) for stage in self._stages)
        for connection in self._connections if idle else []:
            try:
                send(connection, None)
            except OSError:
                idle = False
        self._launcher.end(gently=idle)
        self._close(self._connections)

    def pids(self) -> list[int]:
        """Process ids, in the order of devices."""
        return [hello.pid for hello in self.layout.ranks]

    def _gather(self, arrived: dict[int, tuple[Hello, Connection]]) -> None:
        """Wait for the first message of every rank."""
        launcher = self._launcher
        deadline = time.monotonic() + launcher.start_timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._reception, selectors.EVENT_READ)
            for signal in launcher.signals():
                selector.register(signal, selectors.EVENT_READ)
            while len(arrived) < launcher.num_ranks:
                missing = sorted(set(range(launcher.num_ranks)) - set(arrived))
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if not ready:
                    what = f"{describe_ranks(missing)} not ready after {launcher.start_timeout_s:g} s"
                    raise RankTrouble(missing[0], STAGES[0], what, launcher.log_of(missing[0]) or "")
                if self._reception not in ready:
                    launcher.check(missing)
                    continue
                caller = self._reception.accept()
                if caller is None:
                    continue
                if isinstance(caller[1], Hello) and caller[1].rank in missing:
                    arrived[caller[1].rank] = caller[1], caller[0]
                    launcher.ready(caller[1])
                else:
                    launcher.admit(*caller)

    def _receive(self, device: int) -> object:
        try:
            message: object = pickle.loads(self._connections[device].recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death_of(device) from error
        if isinstance(message, messages.StageReached):
            self._stages[device] = message.name
        return message

    def _death_of(self, device: int) -> RankTrouble:
        """How a rank ended whose connection broke."""
        ended = self._launcher.exit_of(self.layout.ranks[device].rank)
        at_fault = [hello.rank for hello in self.layout.ranks].index(ended.rank)
        return self._trouble(at_fault, self._stages[at_fault], ended.what, ended.log)

    def _hang_of(self, silent: list[int], timeout_s: float) -> RankTrouble:
        """A timeout; the rank that is furthest behind is the one that the others wait for."""
        device = min(silent, key=lambda device: STAGES.index(self._stages[device]))
        log = self._launcher.log_of(self.layout.ranks[device].rank)
        what = f"no answer within {timeout_s:g} s" + (
            "" if log is not None else ", and its host does not answer either"
        )
        return self._trouble(device, self._stages[device], what, log or "")

    def _trouble(self, device: int, stage: str, what: str, detail: str) -> RankTrouble:
        hello = self.layout.ranks[device]
        return RankTrouble(hello.rank, stage, what, detail, hello.host, device)

    def _close(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            connection.close()
        self._selector.close()
        self._store = None
