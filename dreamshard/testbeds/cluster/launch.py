"""Process control of a cluster testbed's ranks: start them, exchange messages, and end every one.

`rank.py` is what a rank runs. torch.distributed's elastic launcher starts and reaps the ranks; it runs in a thread,
because it returns only when they have ended.
"""

import json
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, answer_challenge, deliver_challenge, wait
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dreamshard.testbeds.cluster.rank import (
    SETUP_FILE,
    STAGES,
    START_FILE,
    Failed,
    Hello,
    Job,
    Measured,
    StageReached,
)

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
GRACE_S = 5.0  # for the rank at fault to report, once another one's all-to-all has failed
DUMP_S = 1.0  # for a hanging rank to dump its traceback
LOG_LINES = 60


@dataclass(eq=False)
class RankTrouble(Exception):  # noqa: N818 - caught where it becomes a MeasurementError
    """A failure of one rank.

    Attributes:
        rank: that failed.
        stage: one of `STAGES`.
        what: happened.
        detail: traceback or last lines of its output.
    """

    rank: int
    stage: str
    what: str
    detail: str


class Ranks:
    """`num_ranks` processes that run from construction to `end`.

    Raises:
        RankTrouble: a rank did not start.
    """

    def __init__(self, num_ranks: int, device_type: str, pickled_setup: bytes) -> None:
        self.num_ranks = num_ranks
        self._folder = tempfile.TemporaryDirectory(prefix="dreamshard-cluster-")
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self._stages = dict.fromkeys(range(num_ranks), STAGES[0])
        self._failures: dict[int, ProcessFailure] = {}
        self._launch_error = ""
        self._ended, ended_writer = Pipe(duplex=False)  # readable when the launcher has ended
        self._launcher = threading.Thread(target=self._launch, args=(ended_writer,), daemon=True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            key = secrets.token_bytes(32)
            address = {"host": "127.0.0.1", "port": server.getsockname()[1], "key": key.hex()}
            start = {**address, "path": [str(folder) for folder in sys.path], "device_type": device_type}
            Path(self._folder.name, START_FILE).write_text(json.dumps(start))
            Path(self._folder.name, SETUP_FILE).write_bytes(pickled_setup)
            self._launcher.start()
            self._accept(server, key)

    def send(self, message: Job | None) -> None:
        """Send `message` to every rank.

        Raises:
            RankTrouble: a rank is gone.
        """
        data = pickle.dumps(message)
        for rank, connection in self._connections.items():
            try:
                connection.send_bytes(data)
            except OSError as error:
                raise self._death_of(rank) from error

    def collect(self, timeout_s: float) -> list[Measured]:
        """Every rank's next measurement, in the order of ranks.

        Raises:
            RankTrouble: a rank raised, died, or did not answer within `timeout_s`; if its failure made others fail, it
                names the first one.
        """
        answers: dict[int, Measured] = {}
        suspect: RankTrouble | None = None
        pending = dict(self._connections)
        deadline = time.monotonic() + timeout_s + DUMP_S
        while pending:
            ready = wait(list(pending.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise suspect or self._hang_of(sorted(pending), timeout_s)
            for rank in [rank for rank, connection in pending.items() if connection in ready]:
                message = self._receive(rank)
                if isinstance(message, Measured):
                    answers[rank] = message
                elif isinstance(message, Failed):
                    trouble = RankTrouble(rank, message.stage, message.error, message.traceback)
                    if message.stage != STAGES[-1]:
                        raise trouble
                    suspect = suspect or trouble
                    deadline = min(deadline, time.monotonic() + GRACE_S)
                else:
                    continue
                del pending[rank]
        if suspect:
            raise suspect
        return [answers[rank] for rank in range(self.num_ranks)]

    def end(self) -> None:
        """End all ranks: idle ones by a message, busy ones by a signal."""
        idle = len(self._pids) == self.num_ranks and set(self._stages.values()) == {"waiting for a placement"}
        if idle and self._launcher.is_alive():
            try:
                self.send(None)
            except RankTrouble:
                idle = False
        if not idle or not self._wait_for_launcher(END_TIMEOUT_S):
            self._kill()
            self._wait_for_launcher(END_TIMEOUT_S)
        for connection in self._connections.values():
            connection.close()
        self._ended.close()
        self._folder.cleanup()

    def pids(self) -> list[int]:
        """Process ids, in the order of ranks."""
        return [self._pids[rank] for rank in sorted(self._pids)]

    def _launch(self, ended: Connection) -> None:
        """Run the elastic launcher until all ranks have ended."""
        for chatty in ("torch.distributed.elastic", "torchelastic-events-null"):
            logging.getLogger(chatty).setLevel(logging.CRITICAL)  # failures are reported from here
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.num_ranks,
            run_id=f"dreamshard-{os.getpid()}-{secrets.token_hex(4)}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=self._folder.name, redirects=Std.ALL),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "dreamshard.testbeds.cluster.rank", self._folder.name)
        except ChildFailedError as error:
            self._failures = dict(error.failures)
        except (RuntimeError, OSError) as error:
            self._launch_error = f"{type(error).__name__}: {error}"
        finally:
            ended.close()

    def _accept(self, server: socket.socket, key: bytes) -> None:
        """Wait for the first message of every rank."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._pids) < self.num_ranks:
            ready = wait([server, self._ended], max(0.0, deadline - time.monotonic()))
            if server not in ready:
                missing = min(set(range(self.num_ranks)) - set(self._pids))
                what = "it ended before it was ready" if ready else f"it was not ready after {START_TIMEOUT_S:g} s"
                detail = self._launch_error or self._log_of(missing)
                self.end()
                raise RankTrouble(missing, STAGES[0], what, detail)
            accepted, _ = server.accept()
            connection = Connection(accepted.detach())
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            hello = pickle.loads(connection.recv_bytes())
            self._connections[hello.rank] = connection
            self._pids[hello.rank] = hello.pid

    def _receive(self, rank: int) -> Measured | Failed | StageReached | Hello:
        try:
            message: Measured | Failed | StageReached | Hello = pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death_of(rank) from error
        if isinstance(message, StageReached):
            self._stages[rank] = message.name
        return message

    def _death_of(self, rank: int) -> RankTrouble:
        """How a rank ended whose connection broke; ends the others to find out."""
        self._kill(all_but=rank)
        self._wait_for_launcher(END_TIMEOUT_S)
        ended_first = [other for other, failure in self._failures.items() if failure.exitcode != -signal.SIGTERM]
        if ended_first and rank not in ended_first:
            rank = min(ended_first)  # the launcher ended `rank`, with SIGTERM, because this one had failed
        failure = self._failures.get(rank)
        what = "it ended"
        if failure is not None and failure.exitcode < 0:
            what = f"it was killed by {signal.Signals(-failure.exitcode).name}"
            if failure.exitcode == -signal.SIGKILL:
                what += ", as the system does when it runs out of memory"
        elif failure is not None:
            what = f"it exited with code {failure.exitcode}"
        return RankTrouble(rank, self._stages[rank], what, self._log_of(rank))

    def _hang_of(self, silent: list[int], timeout_s: float) -> RankTrouble:
        """A timeout; the rank that is furthest behind is the one that the others wait for."""
        rank = min(silent, key=lambda rank: STAGES.index(self._stages[rank]))
        return RankTrouble(rank, self._stages[rank], f"no answer within {timeout_s:g} s", self._log_of(rank))

    def _kill(self, all_but: int | None = None) -> None:
        for rank, pid in self._pids.items():
            if rank != all_but and self._launcher.is_alive():
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGKILL)

    def _wait_for_launcher(self, timeout_s: float) -> bool:
        self._launcher.join(timeout_s)
        return not self._launcher.is_alive()

    def _log_of(self, rank: int) -> str:
        """The last lines that the rank wrote to stderr."""
        logs = sorted(Path(self._folder.name).glob(f"*/attempt_*/{rank}/stderr.log"))
        lines = "\n".join(log.read_text(errors="replace") for log in logs).splitlines()
        return "\n".join(lines[-LOG_LINES:])
